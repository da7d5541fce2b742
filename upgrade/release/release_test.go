package release

import (
	"bytes"
	"crypto/rand"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"aead.dev/minisign"
)

func key(t *testing.T) (Keys, minisign.PrivateKey) {
	t.Helper()
	public, private, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	text, err := public.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	keys, err := ParseKeys([]string{string(text)})
	if err != nil {
		t.Fatal(err)
	}
	return keys, private
}

// folder makes a release with an archive of a program.
func folder(t *testing.T, version string, sign *minisign.PrivateKey) string {
	t.Helper()
	dir := t.TempDir()
	program := filepath.Join(t.TempDir(), "barque")
	if err := os.WriteFile(program, []byte("a program"), 0o755); err != nil {
		t.Fatal(err)
	}
	in, err := os.Open(program)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	var archive bytes.Buffer
	if err := Pack(&archive, version, "amd64", in); err != nil {
		t.Fatal(err)
	}
	name := ArchiveName(version, "amd64")
	sums := []byte(Digest(archive.Bytes()) + "  " + name + "\n" + strings.Repeat("0", 64) + "  sbom.json\n")
	write := func(name string, data []byte) {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	write(name, archive.Bytes())
	write(SumsFile, sums)
	if sign != nil {
		write(SignatureFile, minisign.Sign(*sign, sums))
	}
	return dir
}

func all(string) bool { return true }

func TestSignedRelease(t *testing.T) {
	keys, private := key(t)
	others, _ := key(t)
	dir := folder(t, "v0.2.0", &private)
	for _, from := range []string{dir, filepath.Join(dir, ArchiveName("v0.2.0", "amd64"))} {
		l, err := Open(t.Context(), from, nil, all)
		if err != nil {
			t.Fatal(err)
		}
		if l.Version != "v0.2.0" || len(l.Paths) != 1 {
			t.Errorf("%s: %+v", from, l)
		}
		if err := keys.Verify(l.Sums, l.Signature); err != nil {
			t.Error(err)
		}
		if err := others.Verify(l.Sums, l.Signature); !errors.Is(err, ErrSignature) {
			t.Errorf("another key believes it: %v", err)
		}
		if err := keys.Verify(append(l.Sums, '\n'), l.Signature); !errors.Is(err, ErrSignature) {
			t.Errorf("other checksums are believed: %v", err)
		}
		archive, err := os.Open(l.Paths[ArchiveName("v0.2.0", "amd64")])
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := errors.Join(Extract(archive, &out), archive.Close()); err != nil || out.String() != "a program" {
			t.Errorf("unpacked %q: %v", out.String(), err)
		}
	}
	if err := keys.Verify([]byte("x"), nil); !errors.Is(err, ErrSignature) {
		t.Errorf("nothing is believed: %v", err)
	}
}

func TestDamagedArchive(t *testing.T) {
	dir := folder(t, "v0.2.0", nil)
	path := filepath.Join(dir, ArchiveName("v0.2.0", "amd64"))
	if err := os.WriteFile(path, []byte("other"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(t.Context(), dir, nil, all); err == nil || !strings.Contains(err.Error(), "checksum") {
		t.Errorf("error %v", err)
	}
}

// TestProgram: a program is packed into a release without a signature.
func TestProgram(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	l, err := Open(t.Context(), self, func(string) (string, error) { return "v0.1.0-dev.g0bca91a6", nil }, all)
	if err != nil {
		t.Fatal(err)
	}
	if l.Version != "v0.1.0-dev.g0bca91a6" || len(l.Signature) > 0 {
		t.Errorf("%+v", l.Release)
	}
	path := l.Paths[l.Names()[0]]
	if digest, err := DigestOf(path); err != nil || digest != l.Digests[l.Names()[0]] {
		t.Errorf("digest %s: %v", digest, err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("the packed archive stays: %v", err)
	}
}

func TestSums(t *testing.T) {
	zeros := strings.Repeat("0", 64)
	for text, want := range map[string]string{
		zeros + "  barque-v0.2.0-linux-amd64.tar.gz\n" + zeros + " *barque-0.2.0-linux-arm64.tar.gz":  "",
		zeros + "  barque-v0.2.0-linux-amd64.tar.gz\n" + zeros + "  barque-v0.3.0-linux-arm64.tar.gz": "two versions",
		zeros + "  barque-v0.2.0-linux-amd64.tar.gz\n" + zeros + "  barque-0.2.0-linux-amd64.tar.gz":  "two archives",
		"12  barque-v0.2.0-linux-amd64.tar.gz":                                                        "no SHA-256",
		zeros + "  ../barque":                                                                         "no archive",
		"x":                                                                                           "want a checksum",
	} {
		r, err := Parse([]byte(text))
		if want == "" {
			if err != nil || r.Version != "v0.2.0" || len(r.Architectures()) != 2 {
				t.Errorf("%q: %+v, %v", text, r, err)
			}
		} else if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}
