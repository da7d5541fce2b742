package credentials

import (
	"crypto/tls"
	"errors"
	"slices"
	"testing"
)

// TestTryKubelets: a server that is too trustful notices it, and so does one that believes nobody.
func TestTryKubelets(t *testing.T) {
	ids, _, _ := newServer(t)
	if err := ids.TryKubelets(t.Context()); err != nil {
		t.Fatal(err)
	}
	own := ids.Kubelet.Certificate()
	strange, err := selfSigned(own.Leaf)
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		config  func(member string) *tls.Config
		believe bool
	}{
		"believes everybody": {
			func(string) *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS13, InsecureSkipVerify: true} },
			true},
		"believes each node": {func(string) *tls.Config { return ids.KubeletClientTLS()() }, true},
		"believes each CA": {func(member string) *tls.Config {
			config := ids.KubeletTLS()(member)
			config.InsecureSkipVerify = true
			return config
		}, true},
		"believes nobody": {func(string) *tls.Config { return &tls.Config{MinVersion: tls.VersionTLS13} }, false},
	} {
		if err := tryKubelets(t.Context(), c.config, ids.config.Name, own, strange); err == nil ||
			errors.Is(err, errBelieved) != c.believe {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestClientGroups: one certificate of a server is an administrator's, that of its kubeconfig.
func TestClientGroups(t *testing.T) {
	ids, _, _ := newServer(t)
	groups := ids.ClientGroups()
	for _, name := range []string{"admin", "front-proxy", "kubelet-client", "peer", "server-client"} {
		if groups[name] == nil {
			t.Errorf("%s is missing in %v", name, groups)
		}
	}
	for name, of := range groups {
		if slices.Contains(of, "system:masters") != (name == "admin") {
			t.Errorf("%s: %v", name, of)
		}
	}
	if name, err := ids.KubeletClientUser(); name != "barque:kubelet-client" || err != nil {
		t.Errorf("%s, %v", name, err)
	}
}
