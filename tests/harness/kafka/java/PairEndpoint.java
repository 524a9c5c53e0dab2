import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Properties;

/** The endpoint of a pair as a client follows it: a file with the alias of the active member, and the properties for each member. */
final class PairEndpoint {
    private final Path file;
    private final Path clients;
    private String member;

    /** Options: endpoint=FILE clients=FOLDER. */
    PairEndpoint(Options options) {
        this.file = Path.of(options.text("endpoint"));
        this.clients = Path.of(options.text("clients"));
    }

    /** Follows the endpoint to the member that is active now, and returns its alias. */
    String follow() {
        member = read();
        return member;
    }

    /** Returns the properties of a client of that member: the file ALIAS.KIND.properties. */
    Properties client(String kind) throws IOException {
        Properties properties = new Properties();
        try (var reader = Files.newBufferedReader(clients.resolve(member + "." + kind + ".properties"))) {
            properties.load(reader);
        }
        return properties;
    }

    /** Returns whether clients were led to the other member since. If this one has refused nothing, it is lost. */
    boolean isMoved() {
        return !read().equals(member);
    }

    private String read() {
        try {
            return Files.readString(file).strip();
        } catch (IOException error) {
            throw new UncheckedIOException(error);
        }
    }
}
