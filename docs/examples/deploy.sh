#!/bin/sh
# Deploys, one deployment of an environment at a time, in the order in which people asked:
#
#     deploy.sh ENVIRONMENT VERSION
set -eu
environment=${1:?the environment is missing} version=${2:?the version is missing}

# Without a URL each machine would lock a file of its own.
export LOCKKIT_URL="${LOCKKIT_URL:?the backend that all who deploy share, such as redis://locks.internal}"

# Runs this script once more, under the lock: that run is ended if the lock cannot be kept. By `sh`, so
# that it makes no difference how this script was started.
if [ "${LOCKKIT_NAME-}" != "deploy/$environment" ]; then
    exec lockkit run --fair --wait 30m "deploy/$environment" -- sh "$0" "$@"
fi
unset LOCKKIT_NAME # what is left in the background later does not hold the lock

# The token rises with every deployment: a release that came to a halt half-way and goes on later
# has a smaller token, which whatever keeps the releases can refuse.
echo "deploying $version to $environment, number $LOCKKIT_TOKEN"
release --fence "$LOCKKIT_TOKEN" "$environment" "$version"
echo "deployed $version to $environment"
