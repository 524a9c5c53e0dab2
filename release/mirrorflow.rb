# Homebrew's formula. A release fills in the address and the checksum, and attaches it: copy it into a tap.
class Mirrorflow < Formula
  desc "Replicates Kafka clusters exactly once, compatible with MirrorMaker 2"
  homepage "https://mirrorflow.io/docs/"
  url "@URL@"
  sha256 "@SHA256@"
  license "Apache-2.0"

  depends_on :linux
  depends_on "python@3.13"

  def install
    python = Formula["python@3.13"].opt_bin/"python3.13"
    system python, "-m", "venv", libexec
    # The packages with which the tests of this release ran.
    system libexec/"bin/pip", "install", "--constraint", "constraints.txt", ".[cli]"
    %w[mirrorflow mirrorflow-replicator kubectl-mirrorflow].each { |name| bin.install_symlink libexec/"bin"/name }
    generate_completions_from_executable(bin/"mirrorflow", "completion")
  end

  test do
    assert_match version.to_s, shell_output("#{bin}/mirrorflow --version")
  end
end
