import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Arrays;

/**
 * Runs Load and Dump repeatedly in one JVM, because the start of a JVM costs more than the work of most tests.
 *
 * <p>A line on stdin has OUTPUT_FILE, the program and its arguments, separated by tabs. The file receives the program's
 * output, or its stack trace; then stdout receives the line "done" or "failed".
 */
public final class Tools {
    private Tools() {}

    public static void main(String[] arguments) throws Exception {
        PrintStream answers = System.out;
        var questions = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = questions.readLine(); line != null; line = questions.readLine()) {
            String[] words = line.split("\t");
            boolean done;
            try (OutputStream file = Files.newOutputStream(Path.of(words[0]));
                    PrintStream output = new PrintStream(file, false, StandardCharsets.UTF_8)) {
                System.setOut(output);
                done = run(words[1], Arrays.copyOfRange(words, 2, words.length), output);
            } finally {
                System.setOut(answers);
            }
            answers.println(done ? "done" : "failed");
            answers.flush();
        }
        System.exit(0);
    }

    private static boolean run(String program, String[] arguments, PrintStream output) {
        try {
            switch (program) {
                case "Load" -> Load.main(arguments);
                case "Dump" -> Dump.main(arguments);
                default -> throw new IllegalArgumentException(program);
            }
            return true;
        } catch (Exception error) {
            error.printStackTrace(output);
            return false;
        }
    }
}
