package options

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/barque/barque/internal/needs"
	kubeletconfig "github.com/barque/barque/kubelet/config"
	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/pki"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func testOptions(t *testing.T, name string) *Options {
	t.Helper()
	return &Options{DataDir: t.TempDir(), Name: name, CertificateLifetime: pki.LeafLifetime,
		Addresses: nodeaddr.Addresses{Internal: []netip.Addr{netip.MustParseAddr("10.0.0.1")}},
		Settings:  DefaultSettings(), APIPort: 6443, PeerPort: 6444, GossipPort: 7946}
}

// TestWrongOptions: options that contradict themselves end with the exit code of wrong arguments,
// before anything is made.
func TestWrongOptions(t *testing.T) {
	needs.Root(t, "wrong options of a server")
	for says, change := range map[string]func(*Options){
		"--name":               func(o *Options) { o.Name = "A B" },
		"--node-ip":            func(o *Options) { o.NodeIPs = []string{"x"} },
		"--join joins one":     func(o *Options) { o.Join, o.Restore.File = "https://10.0.0.2:6443", "f" },
		"--restore-key-file":   func(o *Options) { o.Restore.KeyFile = "f" },
		"--snapshot-schedule":  func(o *Options) { o.Backups.Every = -time.Hour },
		"--snapshot-retention": func(o *Options) { o.Backups.Every = time.Hour },
		"--snapshot-unsealed":  func(o *Options) { o.Backups.Unsealed, o.Backups.KeyFile = true, "f" },
		"--peers":              func(o *Options) { o.Peers = []string{"x"} },
		"overlap":              func(o *Options) { o.Settings.ServiceCIDRs = o.Settings.ClusterCIDRs },
	} {
		o := testOptions(t, "s1")
		change(o)
		err := o.Complete()
		var coded interface{ ExitCode() int }
		if err == nil || !strings.Contains(err.Error(), says) || !errors.As(err, &coded) ||
			coded.ExitCode() != ExitUsage {
			t.Errorf("%s: %v", says, err)
		}
	}
	if err := testOptions(t, "s1").Complete(); err != nil {
		t.Error(err)
	}
}

// TestTheKubeletsConfigurationFitsTheNode: a node does not start with an address or a port of the
// kubelet's server that it does not have. One without pods has no kubelet.
func TestTheKubeletsConfigurationFitsTheNode(t *testing.T) {
	needs.Root(t, "options of a server")
	for says, change := range map[string]func(*Options){
		"address: 127.0.0.2: the kubelet listens on the node's address alone": func(
			o *Options,
		) {
			o.Kubelet.Address = "127.0.0.2"
		},
		"port: 1: want ": func(o *Options) { o.Kubelet.Port = 1 },
	} {
		o := testOptions(t, "s1")
		o.Kubelet, o.NoNode = kubeletconfig.Default(), false
		change(o)
		err := o.Complete()
		var coded interface{ ExitCode() int }
		if err == nil || !strings.Contains(err.Error(), says) || !errors.As(err, &coded) ||
			coded.ExitCode() != ExitUsage {
			t.Errorf("%s: %v", says, err)
		}
		if o.NoNode = true; o.Complete() != nil {
			t.Errorf("%s: without a kubelet: %v", says, o.Complete())
		}
	}
	o := testOptions(t, "s1")
	o.Kubelet, o.NoNode = kubeletconfig.Default(), false
	read := o.Kubelet
	if err := errors.Join(o.Complete(), o.SettleAddresses(o.Settings)); err != nil ||
		o.Kubelet.Address != o.Addr().String() || o.Kubelet.Port != int32(o.KubeletPort) {
		t.Errorf("%v, %s:%d", err, o.Kubelet.Address, o.Kubelet.Port)
	}
	if read.Address != "" || read.Port != 0 {
		t.Errorf("a start again would want %s:%d", read.Address, read.Port)
	}
}

// TestTheKubeletListensInTheClustersFamily: a detected address of another family goes, and the
// kubelet's configuration has the one that stays.
func TestTheKubeletListensInTheClustersFamily(t *testing.T) {
	v4, v6 := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("2001:db8::1")
	only6 := DefaultSettings()
	only6.ClusterCIDRs, only6.ServiceCIDRs = prefixes("fd00:42::/56"), prefixes("fd00:43::/112")
	for address, wrong := range map[string]bool{"": false, "2001:db8:0::1": false, "::": false, "192.0.2.1": true,
		"192.0.2.7": true} {
		o := Options{Detected: true, Addresses: nodeaddr.Addresses{Internal: []netip.Addr{v4, v6}}, KubeletPort: 10250,
			Kubelet: kubeletconfig.Default()}
		o.Kubelet.Address = address
		if err := o.checkKubelet(); (err != nil) != (address == "192.0.2.7") {
			t.Errorf("%q, before the node has joined: %v", address, err)
		}
		if err := o.SettleAddresses(only6); (err != nil) != wrong || err == nil && o.Kubelet.Address != v6.String() {
			t.Errorf("%q: %v, the kubelet's is %q", address, err, o.Kubelet.Address)
		}
	}
}
