package hardening

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/barque/barque/clusterstatus/cis"
)

func TestExamine(t *testing.T) {
	dir := t.TempDir()
	for path, mode := range map[string]os.FileMode{
		"data/front-proxy.key": 0o600, "data/pki/ca.key": 0o600, "data/pki/data-keys.json": 0o644, "data/pki/ca.crt": 0o644, "data/pki/api.crt": 0o640, "data/pki/gossip.credential": 0o600, "data/node.json": 0o600,
		"data/admin.kubeconfig": 0o604, "data/scheduler.kubeconfig": 0o600, "data/ipam/net/10.1.1.1": 0o644, "units/barque-server.service": 0o644,
		"units/barque-server.service.d/limits.conf": 0o600, "units/other.service": 0o666, "env/server.env": 0o600, "kubelet/10.conf": 0o600,
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
	m, err := Examine("n1", Place{DataDir: at("data"), IPAMDir: at("data/ipam"), CNIDir: at("data/nothing"), Kubelet: []string{at("kubelet"), ""}, UnitDirs: []string{at("units"), at("lib")}, EnvDir: at("env")})
	if err != nil || m.Name != "n1" {
		t.Fatal(m.Name, err)
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
		cis.KindUnit:       {"units/barque-server.service", "units/barque-server.service.d/limits.conf", "env/server.env"},
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
