package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"crypto/rand"
	"debug/buildinfo"
	"encoding/json"
	"errors"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"aead.dev/minisign"
	"github.com/CycloneDX/cyclonedx-go"
	"github.com/blakesmith/ar"
	"github.com/goreleaser/nfpm/v2"
	"github.com/goreleaser/nfpm/v2/deb"
	"github.com/goreleaser/nfpm/v2/rpm"
	provenance "github.com/in-toto/attestation/go/predicates/provenance/v1"
	intoto "github.com/in-toto/attestation/go/v1"
	"github.com/xeipuuv/gojsonschema"
	"google.golang.org/protobuf/encoding/protojson"
)

var at = time.Date(2026, 11, 30, 16, 0, 0, 0, time.UTC)

// parts makes the parts of a release below a new directory, from the files of this tree.
func parts(t *testing.T) layout {
	t.Helper()
	dir := t.TempDir()
	l := layout{source: filepath.Join(dir, "source"), pages: filepath.Join(dir, "pages"),
		program: filepath.Join(dir, "barque")}
	for _, name := range []string{"examples/barque-server.service", "examples/barque-agent.service", "CHANGELOG.md",
		"release/package/config.yaml", "release/package/sysctl.conf", "release/package/modules-load.conf",
		"release/package/postinstall.sh", "release/package/preremove.sh", "release/package/postremove.sh"} {
		content, err := os.ReadFile(filepath.Join("../..", name))
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(l.source, name), string(content))
	}
	for _, name := range []string{"bash", "zsh", "fish", "licenses", "man/barque.1", "man/barque-server.1"} {
		put(t, filepath.Join(l.pages, name), "the text of "+name+"\n")
	}
	put(t, filepath.Join(l.source, "LICENSE"), "a licence\n")
	put(t, l.program, strings.Repeat("the program\n", 10000))
	return l
}

func put(t *testing.T, path, content string) {
	t.Helper()
	err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.WriteFile(path, []byte(content), 0o600))
	if err != nil {
		t.Fatal(err)
	}
}

// The archive has one directory. Its bytes depend on neither the directory of the build nor the
// files' times, modes and owners.
func TestArchive(t *testing.T) {
	var first []byte
	for range 2 {
		l := parts(t)
		items, err := l.items()
		if err != nil {
			t.Fatal(err)
		}
		var out bytes.Buffer
		if err := writeArchive(&out, "barque-v0.1.0-linux-amd64", at, l.program, items); err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = out.Bytes()
		} else if !bytes.Equal(first, out.Bytes()) {
			t.Error("two archives of the same files differ")
		}
	}
	z, err := gzip.NewReader(bytes.NewReader(first))
	if err != nil {
		t.Fatal(err)
	}
	got := contents(t, z)
	for name, h := range got {
		if !strings.HasPrefix(name, "barque-v0.1.0-linux-amd64/") || h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(at) {
			t.Errorf("%s: %+v", name, h)
		}
	}
	for name, mode := range map[string]int64{"": 0o755, "barque": 0o755, "systemd/barque-server.service": 0o644,
		"systemd/barque-agent.service": 0o644, "config.yaml": 0o644, "completions/_barque": 0o644,
		"completions/barque.bash": 0o644, "completions/barque.fish": 0o644, "man/man1/barque-server.1.gz": 0o644,
		"LICENSE": 0o644, "THIRD-PARTY-LICENSES.txt": 0o644, "CHANGELOG.md": 0o644, "sysctl.d/90-barque.conf": 0o644,
		"modules-load.d/barque.conf": 0o644} {
		if h := got["barque-v0.1.0-linux-amd64/"+name]; h == nil || h.Mode != mode {
			t.Errorf("%q: %+v, want mode %o", name, h, mode)
		}
	}
}

// contents are the headers of a tar, by their names. Those of Debian's begin with a dot.
func contents(t *testing.T, from io.Reader) map[string]*tar.Header {
	t.Helper()
	all := map[string]*tar.Header{}
	for r := tar.NewReader(from); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return all
		}
		if err != nil {
			t.Fatal(err)
		}
		all[strings.TrimPrefix(h.Name, ".")] = h
		if h.Typeflag == tar.TypeReg {
			text, err := io.ReadAll(r)
			if err != nil {
				t.Fatal(err)
			}
			h.PAXRecords = map[string]string{"text": string(text)}
		}
	}
}

// packed builds a package of fresh parts.
func packed(t *testing.T, suffix string, packager nfpm.Packager) []byte {
	t.Helper()
	l := parts(t)
	items, err := l.items()
	if err != nil {
		t.Fatal(err)
	}
	info, err := packageInfo("v0.2.0-dev.7.gabc", "arm64", suffix, at, l.program, t.TempDir(),
		filepath.Join(l.source, "release/package"), items)
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if err := packager.Package(info, &out); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestDebianPackage(t *testing.T) {
	text := packed(t, ".deb", deb.Default)
	if !bytes.Equal(text, packed(t, ".deb", deb.Default)) {
		t.Error("two packages of the same files differ")
	}
	tars := map[string]map[string]*tar.Header{}
	for r := ar.NewReader(bytes.NewReader(text)); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		if !h.ModTime.Equal(at) {
			t.Errorf("%s has the time %v", h.Name, h.ModTime)
		}
		if strings.HasSuffix(h.Name, ".tar.gz") {
			z, err := gzip.NewReader(r)
			if err != nil {
				t.Fatal(err)
			}
			tars[strings.TrimSuffix(h.Name, ".tar.gz")] = contents(t, z)
		}
	}
	control, data := tars["control"], tars["data"]
	if got := control["/conffiles"].PAXRecords["text"]; strings.TrimSpace(got) != "/etc/barque/config.yaml" {
		t.Errorf("conffiles: %q", got)
	}
	about := control["/control"].PAXRecords["text"]
	// A prerelease is before its release.
	for _, line := range []string{"Package: barque", "Version: 0.2.0~dev.7.gabc", "Architecture: arm64"} {
		if !strings.Contains(about, line+"\n") {
			t.Errorf("no %q in:\n%s", line, about)
		}
	}
	for _, name := range []string{"postinst", "prerm", "postrm"} {
		script := control["/"+name]
		if script == nil || script.Mode != 0o755 {
			t.Errorf("%s: %+v", name, script)
		}
	}
	for name, h := range data {
		if h.Uid != 0 || h.Gid != 0 || !h.ModTime.Equal(at) || h.Mode&0o022 != 0 {
			t.Errorf("%s: %+v", name, h)
		}
	}
	for _, name := range []string{"/usr/bin/barque", "/usr/lib/systemd/system/barque-agent.service",
		"/etc/barque/config.yaml", "/usr/share/man/man1/barque.1.gz", "/usr/share/zsh/vendor-completions/_barque",
		"/usr/share/bash-completion/completions/barque", "/usr/share/fish/vendor_completions.d/barque.fish",
		"/usr/lib/sysctl.d/90-barque.conf", "/usr/lib/modules-load.d/barque.conf", "/usr/share/doc/barque/copyright"} {
		if data[name] == nil {
			t.Errorf("the package has no %s", name)
		}
	}
	unit := data["/usr/lib/systemd/system/barque-server.service"].PAXRecords["text"]
	if !strings.Contains(unit, "\nExecStart=/usr/bin/barque server ") || strings.Contains(unit, "/usr/local") {
		t.Errorf("the unit does not start the package's program:\n%s", unit)
	}
}

func TestRPMPackage(t *testing.T) {
	text := packed(t, ".rpm", rpm.DefaultRPM)
	if !bytes.Equal(text, packed(t, ".rpm", rpm.DefaultRPM)) {
		t.Error("two packages of the same files differ")
	}
	host, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	if host != "localhost" && bytes.Contains(text, []byte(host)) {
		t.Errorf("the package has the name of this machine, %s", host)
	}
	for _, name := range []string{"aarch64", "0.2.0~dev.7.gabc", "/usr/share/zsh/site-functions/",
		"THIRD-PARTY-LICENSES.txt"} {
		if !bytes.Contains(text, []byte(name)) {
			t.Errorf("the package has no %s", name)
		}
	}
	if bytes.Contains(text, []byte("vendor-completions")) {
		t.Error("the package has a path of Debian's")
	}
}

// The scripts of packages stop a node at a removal only, by the arguments of dpkg and of rpm.
// systemctl is a program of the test.
func TestScripts(t *testing.T) {
	dir := t.TempDir()
	log := filepath.Join(dir, "log")
	put(t, filepath.Join(dir, "systemctl"), "#!/bin/sh\necho \"$@\" >>"+log+
		"\n[ \"$1\" != show ] || cat "+filepath.Join(dir, "unit")+"\n")
	if err := os.Chmod(filepath.Join(dir, "systemctl"), 0o755); err != nil {
		t.Fatal(err)
	}
	// The scripts ask whether systemd runs by a directory that a test cannot make.
	run := func(script string, args ...string) string {
		t.Helper()
		text, err := os.ReadFile(filepath.Join("../package", script))
		if err != nil {
			t.Fatal(err)
		}
		body := strings.ReplaceAll(string(text), "/run/systemd/system", dir)
		body = strings.ReplaceAll(body, "/usr/lib/sysctl.d/90-barque.conf", "../package/sysctl.conf")
		body = strings.ReplaceAll(body, `path="/proc/sys/`, `path="`+dir+`/sys/`)
		put(t, log, "")
		command := exec.Command("sh", append([]string{"-c", body, script}, args...)...)
		command.Env = append(os.Environ(), "PATH="+dir+":"+os.Getenv("PATH"))
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("%s %v: %v: %s", script, args, err, out)
		}
		called, err := os.ReadFile(log)
		if err != nil {
			t.Fatal(err)
		}
		return string(called)
	}
	put(t, filepath.Join(dir, "unit"), "/etc/systemd/system/barque-server.service\n")
	if called := run("preremove.sh", "remove"); strings.Contains(called, "disable") {
		t.Errorf("a service that is not the package's is stopped: %s", called)
	}
	put(t, filepath.Join(dir, "unit"), "/usr/lib/systemd/system/barque-server.service\n")
	for _, c := range []struct {
		script, arg string
		stops       bool
	}{
		{"preremove.sh", "remove", true}, {"preremove.sh", "0", true}, {"preremove.sh", "upgrade", false},
		{"preremove.sh", "1", false}, {"preremove.sh", "deconfigure", false}, {"postinstall.sh", "configure", false},
		{"postinstall.sh", "1", false}, {"postinstall.sh", "2", false}, {"postremove.sh", "purge", false},
		{"postremove.sh", "remove", false}, {"postremove.sh", "upgrade", false},
	} {
		called := run(c.script, c.arg)
		if got := strings.Contains(called, "disable --now barque-server"); got != c.stops {
			t.Errorf("%s %s: stops the server: %v, want %v", c.script, c.arg, got, c.stops)
		}
		for _, verb := range []string{"restart", "start", "enable"} {
			for line := range strings.Lines(called) {
				if slices.Contains(strings.Fields(line), verb) {
					t.Errorf("%s %s calls systemctl %s", c.script, c.arg, line)
				}
			}
		}
	}
	// A limit is raised, and a higher one stays.
	low := filepath.Join(dir, "sys/fs/inotify/max_user_instances")
	high := filepath.Join(dir, "sys/fs/inotify/max_user_watches")
	put(t, low, "128\n")
	put(t, high, "900000\n")
	run("postinstall.sh", "configure")
	for path, want := range map[string]string{low: "8192", high: "900000"} {
		if got, err := os.ReadFile(path); err != nil || strings.TrimSpace(string(got)) != want {
			t.Errorf("%s is %q, want %s (%v)", path, got, want, err)
		}
	}
}

func TestSignature(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "b"), "second")
	put(t, filepath.Join(dir, "a"), "")
	all, err := sumsOf(dir)
	if err != nil {
		t.Fatal(err)
	}
	text := all.text()
	want := "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855  a\n"
	if !strings.HasPrefix(string(text), want) || len(all) != 2 {
		t.Fatalf("%s", text)
	}
	public, private, err := minisign.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	clear, err := private.MarshalText()
	if err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "key")
	put(t, key, string(clear))
	s, err := readKey(key, "")
	if err != nil {
		t.Fatal(err)
	}
	signature := s.sign(text, "barque v0.1.0")
	if !bytes.Equal(signature, s.sign(text, "barque v0.1.0")) {
		t.Error("two signatures of the same text differ")
	}
	r := minisign.NewReader(bytes.NewReader(text))
	if _, err := io.Copy(io.Discard, r); err != nil {
		t.Fatal(err)
	}
	if !r.Verify(public, signature) {
		t.Errorf("the signature does not verify:\n%s", signature)
	}
	// Debian's program agrees.
	if program, err := exec.LookPath("minisign"); err == nil {
		pub, err := public.MarshalText()
		if err != nil {
			t.Fatal(err)
		}
		put(t, filepath.Join(dir, "key.pub"), string(pub))
		put(t, filepath.Join(dir, "SHA256SUMS"), string(text))
		put(t, filepath.Join(dir, "SHA256SUMS.minisig"), string(signature))
		command := exec.Command(program, "-V", "-p", "key.pub", "-m", "SHA256SUMS")
		command.Dir = dir
		if out, err := command.CombinedOutput(); err != nil {
			t.Errorf("minisign -V: %v: %s", err, out)
		}
	}

	if testing.Short() {
		return // to open an encrypted key takes a gigabyte
	}
	sealed, err := minisign.EncryptKey("a password", private)
	if err != nil {
		t.Fatal(err)
	}
	put(t, key, string(sealed))
	put(t, filepath.Join(dir, "right"), "a password\n")
	put(t, filepath.Join(dir, "wrong"), "b password\n")
	if s, err := readKey(key, filepath.Join(dir, "right")); err != nil || !s.key.Equal(private) {
		t.Errorf("an encrypted key: %v", err)
	}
	if _, err := readKey(key, filepath.Join(dir, "wrong")); err == nil {
		t.Error("a wrong password opens the key")
	}
}

func TestWrongKeys(t *testing.T) {
	dir := t.TempDir()
	put(t, filepath.Join(dir, "nonsense"), "untrusted comment: x\nRWRT\n")
	_, err := readKey(filepath.Join(dir, "nonsense"), "")
	if err == nil || !strings.Contains(err.Error(), "nonsense is no minisign secret key") {
		t.Errorf("no key: %v", err)
	}
	if _, err := readKey(filepath.Join(dir, "none"), ""); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no file: %v", err)
	}
}

// made is a build whose Go programs are the test's own binary.
func made(t *testing.T) *build {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	b := &build{source: source{commit: strings.Repeat("ab", 20), time: at}, work: t.TempDir(), version: "v0.1.0"}
	for _, name := range append([]string{"barque"}, programs...) {
		path := filepath.Join(b.work, "amd64", name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(path), 0o755), os.Symlink(self, path)); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range []string{"libc6-dev", "libgcc-12-dev", "libseccomp-dev"} {
		b.inputs = append(b.inputs, debPackage{name: p, version: "2.36-9+deb12u1", arch: "amd64", forArch: "amd64"})
	}
	put(t, filepath.Join(b.work, "source/go.mod"), "module x\n\ngo 1.26.8\n")
	put(t, filepath.Join(b.work, "source/go.sum"), "")
	put(t, filepath.Join(b.work, "source/release/builder/go.sum"), "")
	return b
}

// texts has a licence for each module of the test's own binary.
func texts(t *testing.T) licences {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	info, err := buildinfo.ReadFile(self)
	if err != nil {
		t.Fatal(err)
	}
	root, err := exec.Command("go", "env", "GOROOT").Output()
	if err != nil {
		t.Fatal(err)
	}
	bsd, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(root)), "LICENSE"))
	if err != nil {
		t.Fatal(err)
	}
	all := licences{}
	add := func(name, version string) {
		all[name] = licensed{Name: name, Version: version,
			Texts: []struct{ File, Content string }{{"LICENSE", string(bsd)}}}
	}
	add(goLibrary, info.GoVersion)
	for _, name := range []string{"glibc", "libgcc", "libseccomp"} {
		add(name, "")
	}
	for _, m := range info.Deps {
		add(m.Path, m.Version)
	}
	if len(info.Deps) < 10 {
		t.Fatalf("the test's binary has %d modules", len(info.Deps))
	}
	return all
}

// The bill of materials is valid by the schema of CycloneDX, and has the parts of each program.
func TestBOM(t *testing.T) {
	b := made(t)
	text, err := b.bom([]string{"amd64"}, texts(t))
	if err != nil {
		t.Fatal(err)
	}
	again, err := made(t).bom([]string{"amd64"}, texts(t))
	if err != nil || !bytes.Equal(text, again) {
		t.Errorf("two bills of the same programs differ (%v)", err)
	}
	validate(t, text)
	var bom cyclonedx.BOM
	if err := json.Unmarshal(text, &bom); err != nil {
		t.Fatal(err)
	}
	on := map[string][]string{}
	for _, d := range *bom.Dependencies {
		on[d.Ref] = *d.Dependencies
	}
	const seccomp = "pkg:deb/debian/libseccomp-dev@2.36-9%2Bdeb12u1?arch=amd64"
	const glibc = "pkg:deb/debian/libc6-dev@2.36-9%2Bdeb12u1?arch=amd64"
	for ref, want := range map[string][]string{"barque@v0.1.0": {"barque/linux-amd64"},
		"barque/linux-amd64": {"runc/linux-amd64", "ptp/linux-amd64", "pause/linux-amd64",
			"containerd-shim-runc-v2/linux-amd64"},
		"runc/linux-amd64": {seccomp, glibc}, "pause/linux-amd64": {glibc}} {
		for _, w := range want {
			if !slices.Contains(on[ref], w) {
				t.Errorf("%s has no %s: %v", ref, w, on[ref])
			}
		}
	}
	if slices.Contains(on["pause/linux-amd64"], seccomp) {
		t.Error("pause has libseccomp")
	}
	for _, c := range *bom.Components {
		if strings.HasPrefix(c.PackageURL, "pkg:golang/aead.dev/minisign@") {
			if got := (*c.Licenses)[0].License.ID; got != "BSD-3-Clause" {
				t.Errorf("the licence is %q", got)
			}
			return
		}
	}
	t.Error("a module that is compiled in is not there")
}

// validate checks a bill by the schema that comes with the library.
func validate(t *testing.T, text []byte) {
	t.Helper()
	out, err := exec.Command("go", "list", "-f", "{{.Dir}}", "github.com/CycloneDX/cyclonedx-go").Output()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(strings.TrimSpace(string(out)), "schema")
	// The schemas refer to each other by their addresses; none is fetched.
	loader := gojsonschema.NewSchemaLoader()
	for _, name := range []string{"spdx.schema.json", "jsf-0.82.schemax.json"} {
		if err := loader.AddSchemas(gojsonschema.NewReferenceLoader("file://" + filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	main := gojsonschema.NewReferenceLoader("file://" + filepath.Join(dir, "bom-1.6.schema.json"))
	schema, err := loader.Compile(main)
	if err != nil {
		t.Fatal(err)
	}
	result, err := schema.Validate(gojsonschema.NewBytesLoader(text))
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range result.Errors() {
		t.Error(e)
	}
}

// A component without a licence text ends the release.
func TestBOMWithoutALicence(t *testing.T) {
	for _, name := range []string{"aead.dev/minisign", "libseccomp", goLibrary} {
		all := texts(t)
		delete(all, name)
		if _, err := made(t).bom([]string{"amd64"}, all); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("without %s: %v", name, err)
		}
	}
}

// The statement is valid by in-toto's own types, and names every file.
func TestProvenance(t *testing.T) {
	b := made(t)
	text, err := b.provenance(sums{{"barque-v0.1.0-linux-amd64.tar.gz", strings.Repeat("0f", 32)}}, []string{"amd64"})
	if err != nil {
		t.Fatal(err)
	}
	var s intoto.Statement
	if err := protojson.Unmarshal(text, &s); err != nil {
		t.Fatal(err)
	}
	if err := s.Validate(); err != nil {
		t.Error(err)
	}
	if s.Subject[0].Name != "barque-v0.1.0-linux-amd64.tar.gz" || s.PredicateType != "https://slsa.dev/provenance/v1" {
		t.Errorf("%v", &s)
	}
	inner, err := protojson.Marshal(s.Predicate)
	if err != nil {
		t.Fatal(err)
	}
	var p provenance.Provenance
	if err := protojson.Unmarshal(inner, &p); err != nil {
		t.Fatal(err)
	}
	if err := p.Validate(); err != nil {
		t.Error(err)
	}
	if got := p.BuildDefinition.ResolvedDependencies[0].Digest["gitCommit"]; got != b.commit {
		t.Errorf("the commit is %q", got)
	}
}

// Only a commit is released, and a tree with changes is none.
func TestHead(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	git := func(args ...string) {
		t.Helper()
		user := []string{"-c", "user.name=t", "-c", "user.email=t@example.org"}
		command := exec.Command("git", append(user, args...)...)
		command.Env = append(os.Environ(), "GIT_COMMITTER_DATE=2026-11-30T16:00:00Z")
		if out, err := command.CombinedOutput(); err != nil {
			t.Fatalf("git %v: %v: %s", args, err, out)
		}
	}
	git("init", "-q")
	put(t, filepath.Join(dir, "in/a"), "text")
	git("add", ".")
	git("commit", "-q", "-m", "a")
	git("tag", "v0.1.0")
	s, err := head(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if !s.time.Equal(at) || s.describe != "v0.1.0" || len(s.commit) != 40 {
		t.Errorf("%+v", s)
	}
	put(t, filepath.Join(dir, "b"), "not committed")
	if _, err := head(context.Background()); err == nil || !strings.Contains(err.Error(), "?? b") {
		t.Errorf("a tree with changes: %v", err)
	}
	out := filepath.Join(t.TempDir(), "out")
	if err := s.export(context.Background(), out); err != nil {
		t.Fatal(err)
	}
	if content, err := os.ReadFile(filepath.Join(out, "in/a")); err != nil || string(content) != "text" {
		t.Errorf("%q, %v", content, err)
	}
	if _, err := os.Stat(filepath.Join(out, "b")); !errors.Is(err, fs.ErrNotExist) {
		t.Error("a file that is not committed is exported")
	}
}

// A program of another architecture, or one that needs libraries of the machine, is refused.
func TestPrograms(t *testing.T) {
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	other := map[string]string{"amd64": "arm64", "arm64": "amd64"}[runtime.GOARCH]
	if err := checkProgram(self, other); err == nil || !strings.Contains(err.Error(), "is for") {
		t.Errorf("a program of %s for %s: %v", runtime.GOARCH, other, err)
	}
	if err := checkProgram(self, runtime.GOARCH); err != nil {
		t.Errorf("this test, which has no cgo: %v", err)
	}
	if err := checkProgram("/bin/sh", runtime.GOARCH); err == nil || !strings.Contains(err.Error(), "is not static") {
		t.Errorf("/bin/sh: %v", err)
	}
}

// Schemas are used again only where a tree has generated them.
func TestReusedSchemas(t *testing.T) {
	tree, src := t.TempDir(), t.TempDir()
	put(t, filepath.Join(src, schemas, "README.md"), "")
	if err := reuseSchemas(tree, src); err == nil || !strings.Contains(err.Error(), "make schemas") {
		t.Errorf("without schemas: %v", err)
	}
	put(t, filepath.Join(tree, schemas, "a.json.zst"), "schema")
	if err := reuseSchemas(tree, src); err != nil {
		t.Fatal(err)
	}
	content, err := os.ReadFile(filepath.Join(src, schemas, "a.json.zst"))
	if err != nil || string(content) != "schema" {
		t.Errorf("%q, %v", content, err)
	}
	if _, err := os.Stat(filepath.Join(src, schemasStamp)); err != nil {
		t.Error(err)
	}
}

func TestArguments(t *testing.T) {
	for _, c := range []struct {
		args []string
		says string
	}{
		{[]string{"-archs", "amd64,riscv64"}, `no release for "riscv64"`},
		{[]string{"more"}, `unknown argument "more"`},
		{[]string{"-key", "/nowhere"}, "the key: "},
	} {
		if err := run(context.Background(), c.args); err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%v: %v", c.args, err)
		}
	}
}
