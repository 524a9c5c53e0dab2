import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;

/** Arguments of the form name=value; each program documents its own. */
final class Options {
    private final Properties given = new Properties();

    Options(String[] arguments) {
        for (String argument : arguments) {
            int equals = argument.indexOf('=');
            given.setProperty(argument.substring(0, equals), argument.substring(equals + 1));
        }
    }

    String text(String name, String otherwise) {
        return given.getProperty(name, otherwise);
    }

    String text(String name) {
        String value = given.getProperty(name);
        if (value == null) {
            throw new IllegalArgumentException(name + "= is missing");
        }
        return value;
    }

    long number(String name, long otherwise) {
        String value = given.getProperty(name);
        return value == null ? otherwise : Long.parseLong(value);
    }

    boolean flag(String name) {
        return Boolean.parseBoolean(given.getProperty(name, "false"));
    }

    /** Returns the client's properties from the file that client= names. */
    Properties client() throws java.io.IOException {
        Properties properties = new Properties();
        try (var reader = Files.newBufferedReader(Path.of(text("client")))) {
            properties.load(reader);
        }
        return properties;
    }
}
