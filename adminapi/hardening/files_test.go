package hardening

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/barque/barque/clusterstatus/cis"
)

func TestExamine(t *testing.T) {
	dir := t.TempDir()
	for path, mode := range map[string]os.FileMode{
		"data/front-proxy.key": 0o600, "data/pki/ca.key": 0o600, "data/pki/data-keys.json": 0o644,
		"data/pki/ca.crt": 0o644, "data/pki/api.crt": 0o640, "data/pki/gossip.credential": 0o600,
		"data/node.json":        0o600,
		"data/admin.kubeconfig": 0o604, "data/scheduler.kubeconfig": 0o600, "data/ipam/net/10.1.1.1": 0o644,
		"units/barque-server.service":               0o644,
		"units/barque-server.service.d/limits.conf": 0o600, "units/other.service": 0o666, "env/server.env": 0o600,
		"kubelet/10.conf": 0o600,
	} {
		path = filepath.Join(dir, path)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, nil, mode); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(path, mode); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Symlink("units", filepath.Join(dir, "lib")); err != nil {
		t.Fatal(err)
	}
	at := func(name string) string { return filepath.Join(dir, name) }
	m := Examine("n1",
		Place{DataDir: at("data"), IPAMDir: at("data/ipam"), CNIDir: at("data/nothing"),
			Kubelet: []string{at("kubelet"), ""}, UnitDirs: []string{at("units"), at("lib")}, EnvDir: at("env")})
	if m.Name != "n1" || m.Unseen != nil {
		t.Fatal(m.Name, m.Unseen)
	}
	kinds := map[string][]string{}
	for _, f := range m.Files {
		name, err := filepath.Rel(dir, f.Path)
		if err != nil {
			t.Fatal(err)
		}
		kinds[f.Kind] = append(kinds[f.Kind], name)
		if name == "data/admin.kubeconfig" && f.Mode != 0o604 {
			t.Errorf("mode %o", f.Mode)
		}
		if int(f.UID) != os.Getuid() || int(f.GID) != os.Getgid() {
			t.Errorf("%s belongs to %d:%d", name, f.UID, f.GID)
		}
	}
	for kind, want := range map[string][]string{
		cis.KindUnit: {"units/barque-server.service", "units/barque-server.service.d/limits.conf",
			"env/server.env"},
		cis.KindKubeconfig: {"data/admin.kubeconfig", "data/scheduler.kubeconfig"},
		cis.KindRecord:     {"data/node.json"},
		cis.KindPKI:        {"data/pki", "data/pki/gossip.credential"},
		cis.KindCert:       {"data/pki/api.crt"},
		cis.KindKey:        {"data/front-proxy.key", "data/pki/ca.key", "data/pki/data-keys.json"},
		cis.KindCA:         {"data/pki/ca.crt"},
		cis.KindCNI:        {"data/ipam/net/10.1.1.1"},
		cis.KindKubelet:    {"kubelet/10.conf"},
		cis.KindStore:      nil,
	} {
		if !slices.Equal(kinds[kind], want) {
			t.Errorf("%s: %v, want %v", kind, kinds[kind], want)
		}
	}
}

// layout makes the files and links of a directory for the kubelet's configuration.
func layout(t *testing.T, files, links map[string]string) (at func(string) string) {
	t.Helper()
	dir := t.TempDir()
	at = func(name string) string { return filepath.Join(dir, name) }
	for name := range files {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(at(name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Chmod(at(name), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	for name, to := range links {
		if err := os.MkdirAll(filepath.Dir(at(name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(at(to), at(name)); err != nil {
			t.Fatal(err)
		}
	}
	return at
}

// TestConfigurationsBehindLinks: the kubelet reads its configuration through links, so the file
// behind them counts.
func TestConfigurationsBehindLinks(t *testing.T) {
	for name, c := range map[string]struct {
		files, links map[string]string
		root, want   string
	}{
		"a file": {map[string]string{"file": ""}, nil, "file", "file"},
		"a link to a file": {map[string]string{"real": ""}, map[string]string{"config": "real"}, "config",
			"config"},
		"a link to a link": {map[string]string{"real": ""},
			map[string]string{"config": "second", "second": "real"}, "config", "config"},
		"a directory that is a link": {map[string]string{"real/10.conf": ""}, map[string]string{"dir": "real"}, "dir",
			"dir/10.conf"},
		"a drop-in that is a link": {map[string]string{"real": ""}, map[string]string{"dir/10.conf": "real"}, "dir",
			"dir/10.conf"},
		"a drop-in that leads nowhere": {map[string]string{"dir/10.conf": ""},
			map[string]string{"dir/20.conf": "absent"}, "dir", "dir/10.conf"},
		"a circle": {map[string]string{"dir/10.conf": ""}, map[string]string{"dir/again": "dir"},
			"dir", "dir/10.conf"},
		"a file of another kind, too": {map[string]string{"data/node.key": ""},
			map[string]string{"config": "data/node.key"}, "config", "config"},
	} {
		t.Run(name, func(t *testing.T) {
			at := layout(t, c.files, c.links)
			m := Examine("n1", Place{DataDir: at("data"), Kubelet: []string{at(c.root)}})
			var found []cis.File
			for _, f := range m.Files {
				if f.Kind == cis.KindKubelet {
					found = append(found, f)
				}
			}
			if len(found) != 1 || found[0].Path != at(c.want) || found[0].Mode != 0o666 || m.Unseen != nil {
				t.Errorf("%+v, unseen %v", found, m.Unseen)
			}
		})
	}
}

// TestTooManyFiles: files beyond the bound are not taken for good ones.
func TestTooManyFiles(t *testing.T) {
	dir := t.TempDir()
	for i := range mostFiles {
		if err := os.Symlink("absent", filepath.Join(dir, strconv.Itoa(i))); err != nil {
			t.Fatal(err)
		}
	}
	m := Examine("n1", Place{DataDir: t.TempDir(), Kubelet: []string{dir}})
	if why := m.Unseen[cis.KindKubelet]; !strings.Contains(why, "not all were looked at") || len(m.Unseen) != 1 {
		t.Errorf("%v", m.Unseen)
	}
}

// TestUnreadableFiles: a path that cannot be read concerns its kind only.
func TestUnreadableFiles(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	m := Examine("n1", Place{DataDir: dir, Kubelet: []string{filepath.Join(file, "below")}})
	if m.Unseen[cis.KindKubelet] == "" || len(m.Unseen) != 1 {
		t.Errorf("%v", m.Unseen)
	}
	m = Examine("n1", Place{DataDir: dir, KubeletUnknown: errors.New("it does not run")})
	if m.Unseen[cis.KindKubelet] != "it does not run" {
		t.Errorf("%v", m.Unseen)
	}
}
