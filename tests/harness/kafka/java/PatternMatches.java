import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.regex.Pattern;
import java.util.regex.PatternSyntaxException;

/** Prints for each line "pattern TAB name" (as hexadecimal UTF-16) whether the whole name matches: 1, 0, or E for a refused pattern. */
public final class PatternMatches {
    private PatternMatches() {
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder answers = new StringBuilder();
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            int tab = line.indexOf('\t');
            answers.append(answer(text(line.substring(0, tab)), text(line.substring(tab + 1)))).append('\n');
        }
        System.out.print(answers);
    }

    private static String answer(String pattern, String name) {
        try {
            return Pattern.compile(pattern).matcher(name).matches() ? "1" : "0";
        } catch (PatternSyntaxException refused) {
            return "E";
        } catch (IllegalArgumentException | IndexOutOfBoundsException refused) {
            return "E";
        }
    }

    private static String text(String hexadecimal) {
        StringBuilder text = new StringBuilder();
        for (int at = 0; at < hexadecimal.length(); at += 4) {
            text.append((char) Integer.parseInt(hexadecimal.substring(at, at + 4), 16));
        }
        return text.toString();
    }
}
