-- What kind of database this is, in one snapshot.
SELECT application_id, user_version, (SELECT count(*) FROM sqlite_schema) AS objects
  FROM pragma_application_id, pragma_user_version;
