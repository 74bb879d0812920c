-- Tables of the module `transaction`, layout 1, beside your own.

CREATE TABLE lockkit_transaction_layout (
    only_row INTEGER PRIMARY KEY CHECK (only_row = 1),
    version  INTEGER NOT NULL
) STRICT;

-- The highest fencing token that each resource has seen.
CREATE TABLE lockkit_gate (
    namespace TEXT    NOT NULL,
    resource  TEXT    NOT NULL,
    token     INTEGER NOT NULL,
    PRIMARY KEY (namespace, resource)
) STRICT, WITHOUT ROWID;

INSERT INTO lockkit_transaction_layout VALUES (1, 1);
