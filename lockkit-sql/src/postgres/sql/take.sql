-- $1 namespace, $2 name, $3 owner, $4 label, $5 lease, $6 inbox, $7 in order, $8 observes,
-- $9 token seen, $10 beat seen, $11 milliseconds to wait for a row or a table
-- Other functions begin with how long to wait; that of asks looks before that. A look waits as well
-- where somebody has locked the table, and its session would be left waiting.
SELECT is_granted, last_token, remaining, last_beat, last_lease
  FROM (SELECT $11::integer AS patience, set_config('lock_timeout', $11::text, true) OFFSET 0) AS begun,
       LATERAL lockkit_take($1::text, $2::text, $3::text, $4::text, $5::bigint, $6::text, $7::boolean,
                            $8::boolean, $9::bigint, $10::bigint, begun.patience)
