-- Users of the destination: the drainer, and the shop, which only reads.
CREATE USER 'drainer'@'%' IDENTIFIED BY 'drainer';
GRANT SELECT, INSERT, UPDATE, DELETE, CREATE, DROP, ALTER, INDEX, REFERENCES, CREATE VIEW, SHOW VIEW, TRIGGER ON *.* TO 'drainer'@'%';
GRANT PROCESS ON *.* TO 'drainer'@'%';
CREATE USER 'reader'@'%' IDENTIFIED BY 'reader';
GRANT SELECT ON *.* TO 'reader'@'%';
