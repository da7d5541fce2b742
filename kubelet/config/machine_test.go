package config

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"k8s.io/utils/ptr"
)

// TestSettle: a setting that depends on the machine is honoured, or keeps the node from starting.
func TestSettle(t *testing.T) {
	dir := t.TempDir()
	const heading = "Filename\tType\tSize\tUsed\tPriority\n"
	none, some := written(t, dir, "none", heading), written(t, dir, "some", heading+"/dev/sda2 partition 1 0 -2\n")
	written(t, dir, "cgroup.controllers", "")
	for _, test := range []struct {
		name, content string
		machine       Machine
		want          string
	}{
		{"nothing is said", "", Machine{Swaps: some, Cgroups: t.TempDir()}, ""},
		{"the node's own", "address: 10.0.0.1\nport: 10250\n", Machine{}, ""},
		{"loopback", "address: 127.0.0.1\n", Machine{},
			"address: 127.0.0.1: the kubelet listens on the node's address alone: remove it, or want 10.0.0.1"},
		{"all addresses", "address: 0.0.0.0\n", Machine{}, ""},
		{"all addresses of IPv6", "address: '::'\n", Machine{}, ""},
		{"another spelling", "address: '::ffff:10.0.0.1'\n", Machine{}, ""},
		{"another one", "address: 10.0.0.2\n", Machine{}, "address: 10.0.0.2"},
		{"no address", "address: localhost\n", Machine{}, "address: localhost"},
		{"another port", "port: 10251\n", Machine{}, "port: 10251: want 10250"},
		{"no swap", "failSwapOn: true\n", Machine{Swaps: none}, ""},
		{"a kernel without swap", "failSwapOn: true\n", Machine{Swaps: dir + "/nothing"}, ""},
		{"swap", "failSwapOn: true\n", Machine{Swaps: some}, "swaps to /dev/sda2: run swapoff"},
		{"swap, allowed", "failSwapOn: false\n", Machine{Swaps: some}, ""},
		{"cgroup v2", "failCgroupV1: true\n", Machine{Cgroups: dir}, ""},
		{"cgroup v1", "failCgroupV1: true\n", Machine{Cgroups: t.TempDir()}, "is cgroup v1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			c, ignored, err := Load(written(t, dir, "kubelet.yaml", header+test.content), "", nil, nil)
			if err != nil || len(ignored) > 0 {
				t.Fatal(ignored, err)
			}
			test.machine.Address = netip.MustParseAddrPort("10.0.0.1:10250")
			err = Settle(c, test.machine)
			if test.want == "" && err != nil ||
				test.want != "" && (err == nil || !strings.Contains(err.Error(), test.want)) {
				t.Errorf("%v, want %q", err, test.want)
			}
			if err == nil &&
				(c.Address != "10.0.0.1" || c.Port != 10250 || c.FailSwapOn == nil ||
					c.MemorySwap.SwapBehavior != "NoSwap") {
				t.Errorf("configz shows address %q, port %d, failSwapOn %v, memorySwap %v", c.Address, c.Port,
					c.FailSwapOn, c.MemorySwap)
			}
		})
	}
}

func TestPodsPerCore(t *testing.T) {
	for perCore, want := range map[int32]int64{0: 110, 3: 12, 100: 110} {
		c := Default()
		c.PodsPerCore = perCore
		if got := MaxPods(c, 4); got != want {
			t.Errorf("%d a core: %d pods, want %d", perCore, got, want)
		}
	}
	if c := Default(); !ptr.Deref(c.LocalStorageCapacityIsolation, false) {
		t.Error("configz does not show that limits of storage hold")
	}
}

// TestAFileOfKubeadm: a file of kubeadm starts a node, but for the CA of clients, which earlier
// versions refused already.
func TestAFileOfKubeadm(t *testing.T) {
	const file = `
authentication: {anonymous: {enabled: false}, webhook: {cacheTTL: 0s, enabled: true}}
authorization: {mode: Webhook, webhook: {cacheAuthorizedTTL: 0s, cacheUnauthorizedTTL: 0s}}
address: 0.0.0.0
cgroupDriver: systemd
clusterDNS: [10.96.0.10]
clusterDomain: cluster.local
containerRuntimeEndpoint: ""
cpuManagerReconcilePeriod: 0s
crashLoopBackOff: {}
evictionPressureTransitionPeriod: 0s
fileCheckFrequency: 0s
healthzBindAddress: 127.0.0.1
healthzPort: 10248
httpCheckFrequency: 0s
imageMaximumGCAge: 0s
imageMinimumGCAge: 0s
logging: {flushFrequency: 0, options: {json: {infoBufferSize: "0"}, text: {infoBufferSize: "0"}}, verbosity: 0}
memorySwap: {}
nodeStatusReportFrequency: 0s
nodeStatusUpdateFrequency: 0s
rotateCertificates: true
runtimeRequestTimeout: 0s
shutdownGracePeriod: 0s
shutdownGracePeriodCriticalPods: 0s
staticPodPath: /etc/kubernetes/manifests
streamingConnectionIdleTimeout: 0s
syncFrequency: 0s
volumeStatsAggPeriod: 0s
`
	c, ignored, err := Load(written(t, t.TempDir(), "kubelet.yaml", header+file), "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"healthzBindAddress", "healthzPort"} {
		if !slices.Contains(ignored, name) {
			t.Errorf("nobody hears that %s has no effect: %v", name, ignored)
		}
	}
	if err := Settle(c,
		Machine{Address: netip.MustParseAddrPort("10.0.0.1:10250"), Swaps: t.TempDir(),
			Cgroups: t.TempDir()}); err != nil {
		t.Error(err)
	}
	if *c.HealthzPort != 0 || c.HealthzBindAddress != "" || c.Address != "10.0.0.1" {
		t.Errorf("configz shows %d, %q, %q", *c.HealthzPort, c.HealthzBindAddress, c.Address)
	}
}
