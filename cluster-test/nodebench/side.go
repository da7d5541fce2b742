package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/moby/sys/mountinfo"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	clustertest "github.com/barque/barque/cluster-test"
)

// The nodes of a dev cluster.
const (
	server = "s1"
	agent  = "a1"
)

// kubeletNode is the name of kubelet's node. Barque knows that agent stands for another machine,
// and judges that by gossip. A new name is one that lives by its Lease.
const kubeletNode = "k1"

// The programs of a room. Barque's binary is containerd, when that is its first argument.
const (
	containerd = "containerd"
	kubelet    = "kubelet"
	kubeProxy  = "kube-proxy"
)

// patience bounds each wait for a node and for its pods.
const patience = 10 * time.Minute

// bench is one node under test, and the cluster that it is of.
type bench struct {
	options
	*clustertest.Cluster
	client  kubernetes.Interface
	running *sightings     // of its pods
	node    string         // its name in the API
	pids    map[string]int // of its own processes, without containerd, by their names
	server  int            // the process of the cluster's server
	tenant  *tenant        // upstream's; nil of Barque
	created int            // how many pods so far
}

// with makes a dev cluster with a node of a side, and removes it.
func with(ctx context.Context, o options, whose string, measure func(*bench) error) (err error) {
	c, err := clustertest.Up(ctx, clustertest.Options{Servers: 1, Agents: 1})
	if c != nil {
		defer func() { err = errors.Join(err, c.Down()) }()
	}
	if err != nil {
		return err
	}
	if whose == barque { // as upstream's are: its first process, and its containerd, have unpacked images
		if err := errors.Join(c.DevResult(ctx, "stop", agent).Error,
			c.DevResult(ctx, "start", agent).Error); err != nil {
			return err
		}
	}
	addresses, pids, err := devNodes(ctx, c)
	if err != nil {
		return err
	}
	b := &bench{options: o, Cluster: c, running: &sightings{at: map[string]time.Time{}}, node: agent,
		pids: map[string]int{barque: pids[agent]}, server: pids[server]}
	// The cluster's own client ends every request after a while, a watch too.
	config, err := clientcmd.BuildConfigFromFlags("", c.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS = -1
	if b.client, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	watching, stop := context.WithCancel(ctx)
	defer stop()
	if err := b.running.watch(watching, b.client); err != nil {
		return err
	}
	if whose == upstream {
		defer func() {
			if b.tenant != nil {
				b.tenant.leave()
			}
		}()
		if err := b.moveIn(ctx, addresses); err != nil {
			return errors.Join(err, b.said())
		}
	}
	if err := b.ready(ctx); err != nil {
		return errors.Join(err, b.said())
	}
	if err := measure(b); err != nil {
		return errors.Join(err, b.said())
	}
	return nil
}

func (b *bench) said() error {
	if b.tenant == nil {
		return nil
	}
	return b.tenant.said()
}

// devNodes returns the addresses and processes of the nodes by their names.
func devNodes(
	ctx context.Context, c *clustertest.Cluster,
) (addresses map[string]string, pids map[string]int, err error) {
	r := c.DevResult(ctx, "status", "-o", "json")
	if r.Error != nil {
		return nil, nil, r.Error
	}
	var status struct {
		Nodes []struct {
			Name, Address string
			PID           int
		}
	}
	if err := json.Unmarshal([]byte(r.Out), &status); err != nil {
		return nil, nil, err
	}
	addresses, pids = map[string]string{}, map[string]int{}
	for _, n := range status.Nodes {
		addresses[n.Name], pids[n.Name] = n.Address, n.PID
	}
	return addresses, pids, nil
}

// kubeletConfig is a KubeletConfiguration. Eviction and the images that are kept are as dev
// clusters have them. kubelet refuses swap and cgroups of version 1 by default, and Barque neither.
// All else is as upstream has it.
const kubeletConfig = `apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: %q
cgroupDriver: cgroupfs
cgroupRoot: %q
podLogsDir: %q
clusterDomain: cluster.local
clusterDNS: [10.43.0.10]
authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: %q}}
authorization: {mode: AlwaysAllow}
evictionHard: {memory.available: 100Mi}
imageGCHighThresholdPercent: 100
failCgroupV1: false
failSwapOn: false
`

// kubeProxyConfig is a KubeProxyConfiguration. The limits of connection tracking are the
// machine's, not those of a network namespace. All else is as upstream has it.
const kubeProxyConfig = `apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: nftables
clientConnection: {kubeconfig: %q}
hostnameOverride: %q
clusterCIDR: 10.42.0.0/16
conntrack: {maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}
`

// kernelSettings are the kubelet's settings, as files below /proc/sys.
var kernelSettings = map[string]string{
	"vm/overcommit_memory": "1", "vm/panic_on_oom": "0", "kernel/panic": "10", "kernel/panic_on_oops": "1",
	"kernel/keys/root_maxkeys": "1000000", "kernel/keys/root_maxbytes": "25000000",
}

// moveIn stops the agent, and starts upstream's programs in its place.
func (b *bench) moveIn(ctx context.Context, addresses map[string]string) error {
	if r := b.DevResult(ctx, "stop", agent); r.Error != nil {
		return r.Error
	}
	err := b.until(ctx, func(ctx context.Context) error {
		err := b.client.CoreV1().Nodes().Delete(ctx, agent, metav1.DeleteOptions{})
		if apierrors.IsNotFound(err) { // the answer to an earlier try was lost
			err = nil
		}
		return err
	})
	if err != nil {
		return err
	}
	r, err := b.room(addresses)
	if err != nil {
		return err
	}
	if b.tenant, err = enter(ctx, b.Netns(agent), r); err != nil {
		return err
	}
	b.node, b.pids = kubeletNode, map[string]int{kubelet: b.tenant.pids[kubelet]}
	if len(r.Programs) == len(b.tenant.pids) {
		return nil // without kube-proxy
	}
	if err := b.ready(ctx); err != nil {
		return err
	}
	err = b.tenant.release()
	b.pids[kubeProxy] = b.tenant.pids[kubeProxy]
	return err
}

// room writes the configuration of upstream's programs.
func (b *bench) room(addresses map[string]string) (r room, err error) {
	data := b.DataDir(agent) // removed with the cluster
	r = room{Dir: filepath.Join(data, "upstream"), Copied: []string{"/var/lib", "/var/log"}, Settings: kernelSettings}
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return r, err
	}
	config, err := clientcmd.LoadFromFile(b.Kubeconfig())
	if err != nil {
		return r, err
	}
	kubeconfig, authority := filepath.Join(r.Dir, "kubeconfig"), filepath.Join(r.Dir, "ca.crt")
	for _, cluster := range config.Clusters {
		cluster.Server = "https://" + addresses[server] + ":6443"
		err = errors.Join(err, os.WriteFile(authority, cluster.CertificateAuthorityData, 0o600))
	}
	if err := errors.Join(err, clientcmd.WriteToFile(*config, kubeconfig)); err != nil {
		return r, err
	}
	cgroup := "/barque-dev-" + b.ID + "/" + agent // of the node in the dev cluster, removed with it
	if err := makeCgroup(cgroup); err != nil {
		return r, err
	}
	socket := filepath.Join(data, "containerd/containerd.sock")
	kubeletFile, proxyFile := filepath.Join(r.Dir, "kubelet.yaml"), filepath.Join(r.Dir, "kube-proxy.yaml")
	err = errors.Join(
		os.WriteFile(kubeletFile,
			fmt.Appendf(nil, kubeletConfig, "unix://"+socket, cgroup, filepath.Join(data, "log/pods"), authority),
			0o600),
		os.WriteFile(proxyFile, fmt.Appendf(nil, kubeProxyConfig, kubeconfig, kubeletNode), 0o600))
	if err != nil {
		return r, err
	}
	bin, err := filepath.Abs(b.bin)
	if err != nil {
		return r, err
	}
	own, err := clustertest.Binary()
	if err != nil {
		return r, err
	}
	r.Programs = []program{
		{Name: containerd,
			Command: []string{own, containerd, "--config", filepath.Join(data, "containerd/config.toml")},
			Socket:  socket},
		{Name: kubelet,
			Command: []string{filepath.Join(bin, kubelet), "--config", kubeletFile, "--kubeconfig", kubeconfig,
				"--hostname-override", kubeletNode, "--node-ip", addresses[agent], "--root-dir",
				filepath.Join(data, "kubelet")}},
	}
	if _, err := exec.LookPath("nft"); err != nil {
		progress("kube-proxy is left out: %v", err)
		return r, nil
	}
	// It ends when its node gets an address after it has started.
	r.Programs = append(r.Programs,
		program{Name: kubeProxy, Command: []string{filepath.Join(bin, kubeProxy), "--config", proxyFile}, Held: true})
	return r, nil
}

// makeCgroup makes a cgroup in all hierarchies, where kubelet wants it. The agent has made some.
func makeCgroup(path string) error {
	mounts, err := mountinfo.GetMounts(mountinfo.FSTypeFilter("cgroup", "cgroup2"))
	if err != nil {
		return err
	}
	for _, m := range mounts {
		if err := os.MkdirAll(filepath.Join(m.Mountpoint, path), 0o755); err != nil {
			return err
		}
	}
	return nil
}

// ready waits until the node is, and pods may be made.
func (b *bench) ready(ctx context.Context) error {
	return b.until(ctx, func(ctx context.Context) error {
		if _, err := b.client.CoreV1().ServiceAccounts(namespace).Get(ctx, "default", metav1.GetOptions{}); err != nil {
			return err
		}
		node, err := b.client.CoreV1().Nodes().Get(ctx, b.node, metav1.GetOptions{})
		if err != nil {
			return err
		}
		if len(node.Spec.Taints) > 0 {
			return fmt.Errorf("node %s has taint %s", b.node, node.Spec.Taints[0].Key)
		}
		for _, c := range node.Status.Conditions {
			if c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue {
				return nil
			} else if c.Type == corev1.NodeReady {
				return fmt.Errorf("node %s is not Ready: %s", b.node, c.Message)
			}
		}
		return fmt.Errorf("node %s has no Ready condition", b.node)
	})
}

// until repeats a check until it succeeds, or upstream's programs have ended.
func (b *bench) until(ctx context.Context, check func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-b.ended():
			return fmt.Errorf("upstream's programs have ended: %w", err)
		case <-ctx.Done():
			return errors.Join(err, context.Cause(ctx))
		case <-time.After(100 * time.Millisecond):
		}
	}
}

// ended is closed when upstream's programs have ended; it is nil of Barque.
func (b *bench) ended() <-chan struct{} {
	if b.tenant == nil {
		return nil
	}
	return b.tenant.ended
}
