# An agent: `sh peer.sh KIND FOLDER NAME LEASE SERVER...`, of a library that works, errs, hangs, or
# starts once only.
kind=$1 folder=$2 name=$3
echo $$ >"$folder/process-$$"
if [ "$kind" = once ] && ! mkdir "$folder/once" 2>/dev/null; then
  echo '{"cannot": "it starts once only"}'
  exit
fi
echo "{\"peer\": \"$name\", \"version\": \"1.2.3\"}"
while read -r workload lock rest; do
  echo "$name $workload" >>"$folder/asked"
  case $kind-$workload in
    errs-* | once-uncontended)
      echo '{"error": "the library says no"}'
      continue
      ;;
    hangs-uncontended)
      # What it has started is to end with it.
      sleep 1000 &
      echo $! >"$folder/process-$!"
      wait
      ;;
  esac
  case $workload in
    uncontended | handover) echo '{"nanoseconds": [9000000, 9000000, 1000, 2000, 3000, 4000, 5000, 6000]}' ;;
    contended) echo '{"clients": [[1000, 3000], [2000, 4000]], "seconds": 0.5}' ;;
    hold)
      # Held until its process is gone.
      until (set -C && echo $$ >"$folder/$lock") 2>/dev/null; do
        kill -0 "$(cat "$folder/$lock")" 2>/dev/null || rm -f "$folder/$lock"
        sleep 0.02
      done
      echo '{"held": true}'
      ;;
  esac
done
