-- The limits and the weight of users and groups: only the values that are set. `fleet/limits.py` decides for which owners they hold.
CREATE TABLE subject_limits (
    subject  TEXT PRIMARY KEY CHECK (subject != ''),  -- user/NAME, group/NAME, everyone or root
    limits   TEXT NOT NULL                            -- JSON: the members of `model.limits.Limits`
) WITHOUT ROWID;
