package enroll

import (
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// TestUnitIsTheExample: who copies the example gets what `cluster join` writes.
func TestUnitIsTheExample(t *testing.T) {
	for _, role := range []string{"server", "agent"} {
		example, err := os.ReadFile("../../examples/barque-" + role + ".service")
		if err != nil {
			t.Fatal(err)
		}
		_, text, _ := strings.Cut(string(example), "[Unit]")
		if got, want := unitText(role, "/usr/local/bin/barque", "/etc/barque/"+role+".env"),
			"[Unit]"+text; got != want {
			t.Errorf("%s:\n%s\nwant\n%s", role, got, want)
		}
	}
}

// TestShellLine: what is to be pasted means to a shell what was given.
func TestShellLine(t *testing.T) {
	got := shellLine(
		[]string{"--name=a", "--eviction-hard=memory.available<1Gi", "--allowed-unsafe-sysctls=kernel.msg*",
			"--zone=it's"})
	const want = `--name=a '--eviction-hard=memory.available<1Gi' '--allowed-unsafe-sysctls=kernel.msg*' '--zone=it'\''s'`
	if got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// TestSystemdLine: systemd gives the program the arguments that were given here.
func TestSystemdLine(t *testing.T) {
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"--join", "https://10.0.0.1:6443", "--zone=a"}, "--join https://10.0.0.1:6443 --zone=a"},
		{[]string{"--labels=a=b c", "--zone=z"}, `"\"--labels=a=b c\" --zone=z"`},
		{[]string{"--zone=$HOME"}, `"--zone=\$HOME"`},
		{[]string{`--zone=it's "so"`}, `"\"--zone=it's \\\"so\\\"\""`},
		{[]string{"", "--zone="}, `"\"\" --zone="`},
	} {
		if got := systemdLine(c.args); got != c.want {
			t.Errorf("%q: %s, want %s", c.args, got, c.want)
		}
	}
	letters := []rune("a=,# \t\n'\"\\`$%é")
	for seed := range uint64(2000) {
		r := rand.New(rand.NewPCG(seed, 1))
		args := []string{"--join"} // the first one is never odd
		for range r.IntN(4) {
			var word []rune
			for range r.IntN(6) {
				word = append(word, letters[r.IntN(len(letters))])
			}
			args = append(args, string(word))
		}
		line := systemdLine(args)
		if got := systemdWords(t, systemdValue(t, line)); !slices.Equal(got, args) {
			t.Fatalf("seed %d: %q is written as\n%s\nand read as %q", seed, args, line, got)
		}
	}
}

// systemdValue reads a value of an environment file as systemd.exec(5) says: in double quotes a
// backslash goes before one of "\`$ only, and without quotes before any character.
func systemdValue(t *testing.T, text string) string {
	t.Helper()
	quoted := strings.HasPrefix(text, `"`)
	var value strings.Builder
	for i := 0; i < len(text); i++ {
		c := text[i]
		switch {
		case quoted && i == 0:
		case quoted && c == '"':
			if i != len(text)-1 {
				t.Fatalf("%s: something follows the value", text)
			}
		case c == '\n' && !quoted:
			t.Fatalf("%s: the line ends", text)
		case c == '\\' && i+1 < len(text) && (!quoted || strings.IndexByte("\"\\`$", text[i+1]) >= 0):
			i++
			value.WriteByte(text[i])
		default:
			value.WriteByte(c)
		}
	}
	if quoted && !strings.HasSuffix(text, `"`) {
		t.Fatalf("%s: the quotes are not closed", text)
	}
	return value.String()
}

// systemdWords splits the value of a variable that is a word of ExecStart, as systemd.service(5)
// says: at white space, where quotes count and are removed. A backslash preserves the character
// behind it.
func systemdWords(t *testing.T, value string) (words []string) {
	t.Helper()
	var word strings.Builder
	begun, quote := false, byte(0)
	for i := 0; i < len(value); i++ {
		c := value[i]
		switch {
		case c == '\\' && i+1 < len(value):
			i++
			word.WriteByte(value[i])
			begun = true
		case quote != 0 && c == quote:
			quote = 0
		case quote == 0 && (c == '"' || c == '\''):
			quote, begun = c, true
		case quote == 0 && strings.IndexByte(" \t\n\r", c) >= 0:
			if begun {
				words = append(words, word.String())
			}
			word.Reset()
			begun = false
		default:
			word.WriteByte(c)
			begun = true
		}
	}
	if quote != 0 {
		t.Fatalf("%s: the quotes are not closed", value)
	}
	if begun {
		words = append(words, word.String())
	}
	return words
}

// TestServiceIsItsOwnersAlone: the files have a token, and arguments that may be secret, whatever
// the umask. A unit that is there stays as it is.
func TestServiceIsItsOwnersAlone(t *testing.T) {
	defer syscall.Umask(syscall.Umask(0))
	s := Service{Role: "agent", ConfigDir: filepath.Join(t.TempDir(), "etc"), UnitDir: t.TempDir()}
	files, _, err := s.Write("token", []string{"--join=x"})
	if err != nil || len(files) != 3 {
		t.Fatal(files, err)
	}
	for _, path := range files {
		if info, err := os.Stat(path); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v %v", path, info.Mode(), err)
		}
	}
	unit := filepath.Join(s.UnitDir, "barque-agent.service")
	if err := os.WriteFile(unit, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if files, _, err = s.Write("token", nil); err != nil || len(files) != 2 {
		t.Errorf("%v %v", files, err)
	}
	if text, err := os.ReadFile(unit); err != nil || string(text) != "mine" {
		t.Errorf("%s %v", text, err)
	}
}
