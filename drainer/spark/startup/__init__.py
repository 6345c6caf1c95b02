"""From nothing to a running Spark session: Java, the JVM under its supervisor, settings, first jobs."""
