-- What a target that no swap comes to has of its source's foreign keys, triggers, policies, grants and comments.
CREATE TABLE pgddl.finishes (
    pipeline text NOT NULL,
    run      bigint NOT NULL,
    digest   text NOT NULL,     -- of the source's schema, and of what had to wait, when it was brought last
    seq      int NOT NULL,      -- the captured event up to which REFRESH was followed
    PRIMARY KEY (pipeline, run)
);
CREATE TABLE pgddl.finished (
    pipeline text NOT NULL,
    run      bigint NOT NULL,
    number   int NOT NULL,
    event    jsonb NOT NULL,    -- a statement of the source's dump then
    PRIMARY KEY (pipeline, run, number)
);
