package network

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/netip"
	"net/rpc"
	"net/rpc/jsonrpc"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/google/nftables"
	mdns "github.com/miekg/dns"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/tools/cache"

	"github.com/barque/barque/internal/apart"
	"github.com/barque/barque/internal/await"
	"github.com/barque/barque/internal/needs"
	"github.com/barque/barque/internal/remains"
	"github.com/barque/barque/kubelet/bundle"
	"github.com/barque/barque/network/dns"
	"github.com/barque/barque/network/nodeaddr"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/wireguard"
)

// The test binary plays three parts, each in a network namespace of its own:
// the test itself (the local network, and a client outside the cluster), and
// one child per node, which runs a Network on a fake clientset and does what it
// is told over JSON-RPC on its standard input and output. A pod is a thread of
// its node's process in one more namespace, linked by the real CNI plugins.
// All of it goes when the processes end.

const (
	nodeEnv = "BARQUE_TEST_NODE"
	podPort = 8080
	keyFile = "wireguard.key" // in the node's directory
)

func TestMain(m *testing.M) {
	if os.Getenv(nodeEnv) != "" {
		serveNode()
		return
	}
	os.Exit(m.Run())
}

// inNamespace runs the calling test again in a network namespace of its own;
// true in there.
func inNamespace(t *testing.T) bool {
	t.Helper()
	const untested = "the networks of nodes: pods, Services, policies"
	if _, err := bundle.Open(); errors.Is(err, bundle.ErrNotBundled) {
		needs.Missing(t, "the node components (run `make bundle`)", untested)
	}
	return apart.Run(t, apart.Network, 6*time.Minute, untested)
}

// lan makes this namespace a local network with the address 192.168.77.1.
func lan(t *testing.T) netlink.Link {
	t.Helper()
	up(t, "lo")
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "lan"
	must(t, netlink.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}))
	bridge := up(t, "lan")
	must(t, netlink.AddrAdd(bridge, address("192.168.77.1/24")))
	return bridge
}

func up(t *testing.T, name string) netlink.Link {
	t.Helper()
	link, err := netlink.LinkByName(name)
	must(t, err)
	must(t, netlink.LinkSetUp(link))
	return link
}

func address(cidr string) *netlink.Addr {
	addr, err := netlink.ParseAddr(cidr)
	if err != nil {
		panic(err)
	}
	return addr
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// node is a node's process, seen from the test.
type node struct {
	t    *testing.T
	name string
	ip   string
	dir  string
	rpc  *rpc.Client
}

// startNode makes a node process with a link to the local network.
func startNode(t *testing.T, bridge netlink.Link, number int) *node {
	t.Helper()
	return startNodeAt(t, bridge, number, StartArgs{IPs: []string{fmt.Sprintf("192.168.77.1%d/24", number)}})
}

// startNodeAt makes a node process with addresses and more of its own.
func startNodeAt(t *testing.T, bridge netlink.Link, number int, args StartArgs) *node {
	t.Helper()
	n := &node{t: t, name: fmt.Sprintf("node-%d", number), ip: netip.MustParsePrefix(args.IPs[0]).Addr().String()}
	command := exec.Command("/proc/self/exe")
	command.Env = append(os.Environ(), nodeEnv+"=1")
	command.Stderr = t.Output()
	command.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	stdin, err := command.StdinPipe()
	must(t, err)
	stdout, err := command.StdoutPipe()
	must(t, err)
	// the signal comes when the thread ends that has started the process: no goroutine is to end
	// this one
	runtime.LockOSThread()
	t.Cleanup(runtime.UnlockOSThread)
	must(t, command.Start())
	n.rpc = jsonrpc.NewClient(stdio{stdout, stdin})
	t.Cleanup(func() {
		n.rpc.Close() // the end of its input ends the node
		if err := command.Wait(); err != nil {
			t.Errorf("%s: %v", n.name, err)
		}
	})

	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MasterIndex = n.name, bridge.Attrs().Index
	must(t,
		netlink.LinkAdd(
			&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsPid(command.Process.Pid)}))
	up(t, n.name)
	n.dir = t.TempDir()
	args.Name, args.Dir = n.name, n.dir
	n.call("Start", args, nil)
	return n
}

type stdio struct {
	io.ReadCloser
	in io.WriteCloser
}

func (s stdio) Write(p []byte) (int, error) { return s.in.Write(p) }
func (s stdio) Close() error                { return s.in.Close() }

func (n *node) call(method string, args, reply any) {
	n.t.Helper()
	if reply == nil {
		reply = new(struct{})
	}
	if err := n.rpc.Call("Node."+method, args, reply); err != nil {
		n.t.Fatalf("%s: %s: %v", n.name, method, err)
	}
}

// addPod starts a pod that answers on TCP and UDP, and returns its address. Nothing reaches it
// before it is attached.
func (n *node) addPod(name string) []string {
	n.t.Helper()
	var ips []string
	n.call("AddPod", name, &ips)
	return ips
}

// attach tells the node's Network of a pod, as the kubelet does before it starts containers.
func (n *node) attach(pod *corev1.Pod) {
	n.t.Helper()
	n.call("Attach", pod, nil)
}

// dial asks a server, from a pod or (from == "") from the node, and returns its
// answer, or "error: …".
func (n *node) dial(from, network, addr string) string {
	n.t.Helper()
	var answer string
	n.call("Dial", DialArgs{From: from, Network: network, Addr: addr}, &answer)
	return answer
}

// Node is the node's side of the calls; it lives in the node's process.
type Node struct {
	client  *fake.Clientset
	dir     string
	pods    map[string]chan func()
	network *Network
	stop    func() error
	run     func()

	addresses nodeaddr.Addresses

	mu   sync.Mutex
	told []string // reasons of events on the Node
	end  error    // of the Network, once it has ended by itself
}

// serveNode is the main function of a node's process.
func serveNode() {
	n := &Node{client: fake.NewClientset(), pods: map[string]chan func(){}}
	server := rpc.NewServer()
	if err := server.Register(n); err != nil {
		panic(err)
	}
	server.ServeCodec(jsonrpc.NewServerCodec(stdio{os.Stdin, os.Stdout}))
}

type StartArgs struct {
	Name, Dir string
	IPs       []string // with the length of the prefix
	Gateways  []string // of default routes
	Overlay   overlay.Mode
	Networks  []string // of pods, and then of services; those of IPv4 unless given
	DNS       string   // the address of cluster DNS
	Detected  bool     // nobody chose the addresses
}

// Start gives the node its address and runs its Network.
func (n *Node) Start(args StartArgs, _ *struct{}) error {
	n.dir = args.Dir
	for _, name := range []string{"lo", "eth0"} {
		link, err := netlink.LinkByName(name)
		if err != nil {
			return err
		}
		if name == "eth0" {
			for _, ip := range args.IPs {
				addr := address(ip)
				if addr.IP.To4() == nil {
					addr.Flags = unix.IFA_F_NODAD
				}
				if err := netlink.AddrAdd(link, addr); err != nil {
					return err
				}
			}
		}
		if err := netlink.LinkSetUp(link); err != nil {
			return err
		}
		if name != "eth0" {
			continue
		}
		if err := addGateways(link, args.Gateways); err != nil {
			return err
		}
	}
	components, err := bundle.Open()
	if err != nil {
		return err
	}
	if err := components.Unpack(filepath.Join(n.dir, "bin")); err != nil {
		return err
	}
	if args.Networks == nil {
		args.Networks = []string{"10.42.0.0/16", "10.43.0.0/16"}
	}
	if args.DNS == "" {
		args.DNS = clusterIP
	}
	if args.Overlay == "" {
		args.Overlay = overlay.Auto
	}
	for _, ip := range args.IPs {
		n.addresses.Internal = append(n.addresses.Internal, netip.MustParsePrefix(ip).Addr())
	}
	var networks []netip.Prefix
	for _, network := range args.Networks {
		networks = append(networks, netip.MustParsePrefix(network))
	}
	n.run = func() {
		factory := informers.NewSharedInformerFactory(n.client, 0)
		network, err := New(Config{
			NodeName: args.Name, Addresses: n.addresses, PodNetworks: networks[:len(networks)/2],
			ServiceNetworks: networks[len(networks)/2:],
			Overlay:         overlay.Config{Mode: args.Overlay, VNI: overlay.DefaultVNI, Port: overlay.DefaultPort},
			WireGuard:       WireGuardConfig{Port: wireguard.DefaultPort, KeyFile: filepath.Join(n.dir, keyFile)},
			Announce:        n.client.CoreV1().Nodes(),
			Nodes:           factory.Core().V1().Nodes(), Services: factory.Core().V1().Services(),
			EndpointSlices: factory.Discovery().V1().EndpointSlices(), Pods: factory.Core().V1().Pods(),
			Policies: factory.Networking().V1().NetworkPolicies(), Namespaces: factory.Core().V1().Namespaces(),
			Peers: coreinformers.NewPodInformer(n.client, metav1.NamespaceAll, 0, cache.Indexers{}),
			DNS: &dns.Config{Domain: "cluster.local", Addresses: []netip.Addr{netip.MustParseAddr(args.DNS)},
				ResolvConf: filepath.Join(n.dir, "resolv.conf"), Namespaces: factory.Core().V1().Namespaces()},
			CNIConfDir: filepath.Join(n.dir, "cni"), IPAMDir: filepath.Join(n.dir, "ipam"),
			Logger:   slog.New(slog.NewTextHandler(os.Stderr, nil)),
			Detected: args.Detected, Tell: n.tell,
		})
		if err != nil {
			panic(err)
		}
		n.network = network
		ctx, cancel := context.WithCancel(context.Background())
		factory.Start(ctx.Done())
		ended := make(chan error, 1)
		go func() {
			err := network.Run(ctx)
			n.mu.Lock()
			n.end = err
			n.mu.Unlock()
			ended <- err
		}()
		n.stop = func() error {
			cancel()
			factory.Shutdown()
			return <-ended
		}
	}
	n.run()
	return nil
}

// Annotations returns those of the node's own Node object, once it has announced itself.
func (n *Node) Annotations(name string, annotations *map[string]string) error {
	deadline := time.Now().Add(await.Hang)
	for {
		node, err := n.client.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
		if err == nil && node.Annotations[overlay.Annotation] != "" || time.Now().After(deadline) {
			if err == nil {
				*annotations = node.Annotations
			}
			return err
		}
		runtime.Gosched()
	}
}

func (n *Node) tell(_, reason, _ string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.told = append(n.told, reason)
}

// Told takes the reasons of the events that the node has made until now, and how its Network has
// ended by itself.
func (n *Node) Told(_ struct{}, told *Told) error {
	n.mu.Lock()
	defer n.mu.Unlock()
	told.Reasons, n.told = n.told, nil
	if n.end != nil {
		told.End = n.end.Error()
	}
	return nil
}

type Told struct {
	Reasons []string
	End     string
}

// SetLink takes the node's own link down, or up again.
func (n *Node) SetLink(up bool, _ *struct{}) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	if up {
		return netlink.LinkSetUp(link)
	}
	return netlink.LinkSetDown(link)
}

// SetAddress takes an address from the node's own link, and gives one to that or to another link,
// which it makes; either may be missing.
func (n *Node) SetAddress(args AddressArgs, _ *struct{}) error {
	link, err := netlink.LinkByName("eth0")
	if err == nil && args.Old != "" {
		err = netlink.AddrDel(link, address(args.Old))
	}
	if err == nil && args.Link != "" {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = args.Link
		if err = netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: args.Link + "-peer"}); err == nil {
			link, err = netlink.LinkByName(args.Link)
		}
		if err == nil {
			err = netlink.LinkSetUp(link)
		}
	}
	if err == nil && args.New != "" {
		err = netlink.AddrAdd(link, address(args.New))
	}
	if err != nil {
		return err
	}
	return addGateways(link, args.Gateways)
}

type AddressArgs struct {
	Old, New string
	Link     string // for the new one; empty for the node's own
	Gateways []string
}

// FillConnections fills the table of tracked connections with ones that the kernel does not drop to
// make room for others, and DropConnections empties it.
func (n *Node) FillConnections(struct{}, *struct{}) error { return fillConnections() }
func (n *Node) DropConnections(struct{}, *struct{}) error {
	return netlink.ConntrackTableFlush(netlink.ConntrackTable)
}

// SetMTU changes the MTU of the node's own link.
func (n *Node) SetMTU(mtu int, _ *struct{}) error {
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	return netlink.LinkSetMTU(link, mtu)
}

// PodMTU returns the MTU of a pod's link, inside.
func (n *Node) PodMTU(pod string, mtu *int) error {
	failed := make(chan error)
	n.pods[pod] <- func() {
		handle, err := netlink.NewHandle()
		if err == nil {
			defer handle.Close()
			var link netlink.Link
			if link, err = handle.LinkByName("eth0"); err == nil {
				*mtu = link.Attrs().MTU
			}
		}
		failed <- err
	}
	return <-failed
}

func addGateways(link netlink.Link, gateways []string) error {
	for _, gateway := range gateways {
		to := netip.MustParseAddr(gateway)
		everything := netip.PrefixFrom(to, 0).Masked()
		if err := netlink.RouteReplace(
			&netlink.Route{LinkIndex: link.Attrs().Index, Dst: nodeaddr.IPNet(everything),
				Gw: to.AsSlice()}); err != nil {
			return err
		}
	}
	return nil
}

// Move gives the node the second address in place of the first one, and starts its Network anew.
func (n *Node) Move(args StartArgs, _ *struct{}) error {
	if err := n.stop(); err != nil {
		return err
	}
	link, err := netlink.LinkByName("eth0")
	if err != nil {
		return err
	}
	err = errors.Join(netlink.AddrDel(link, address(args.IPs[0])), netlink.AddrAdd(link, address(args.IPs[1])),
		addGateways(link, args.Gateways))
	n.addresses.Internal = nil
	for _, ip := range args.IPs[1:] {
		n.addresses.Internal = append(n.addresses.Internal, netip.MustParsePrefix(ip).Addr())
	}
	n.run()
	return err
}

// OverlayIndex returns the index of the overlay's link, 0 when there is none.
func (n *Node) OverlayIndex(_ struct{}, index *int) error {
	return n.LinkIndex(overlay.LinkName, index)
}

// LinkIndex returns the index of a link, 0 when there is none.
func (n *Node) LinkIndex(name string, index *int) error {
	link, err := netlink.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		*index = 0
		return nil
	}
	if err == nil {
		*index = link.Attrs().Index
	}
	return err
}

// Tunnels returns what the node knows of those that it reaches by WireGuard.
func (n *Node) Tunnels(_ struct{}, seen *[]wireguard.Seen) (err error) {
	*seen, err = n.network.Tunnels()
	return err
}

// Stop ends the node's Network; Restart runs it again.
func (n *Node) Stop(struct{}, *struct{}) error { return n.stop() }
func (n *Node) Restart(struct{}, *struct{}) error {
	n.run()
	return nil
}

// Listen makes the node itself answer, as a pod on the host network does.
func (n *Node) Listen(name string, _ *struct{}) error { return listen(name) }

// Purge does what `barque uninstall` does.
func (n *Node) Purge(struct{}, *struct{}) error {
	kinds := Remains(filepath.Join(n.dir, "cni"), true, "")[1:] // the links of pods go with the pods
	if err := remains.Remove(context.Background(), kinds); err != nil {
		return err
	}
	for _, k := range kinds {
		found, err := k.Find(context.Background())
		if err == nil && len(found) > 0 {
			err = fmt.Errorf("%s stay: %q", k.Name, found)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Objects is what the cluster holds.
type Objects struct {
	Nodes    []*corev1.Node
	Services []*corev1.Service
	Slices   []*discoveryv1.EndpointSlice
	Pods     []*corev1.Pod

	Namespaces []*corev1.Namespace
	Policies   []*networkingv1.NetworkPolicy
}

// Apply makes the fake API server hold these objects and no others.
func (n *Node) Apply(objects Objects, _ *struct{}) error {
	ctx := context.Background()
	core, discovery := n.client.CoreV1(), n.client.DiscoveryV1()
	nodes, err := core.Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, node := range nodes.Items {
		if !slices.ContainsFunc(objects.Nodes, func(stays *corev1.Node) bool { return stays.Name == node.Name }) {
			if err := core.Nodes().Delete(ctx, node.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	for _, node := range objects.Nodes {
		if _, err := core.Nodes().Create(ctx, node, metav1.CreateOptions{}); err == nil {
			continue
		} else if !apierrors.IsAlreadyExists(err) {
			return err
		}
		there, err := core.Nodes().Get(ctx, node.Name, metav1.GetOptions{})
		if err != nil {
			return err
		}
		there.Spec, there.Status = node.Spec, node.Status
		if node.Annotations != nil {
			there.Annotations = node.Annotations
		}
		if _, err := core.Nodes().Update(ctx, there, metav1.UpdateOptions{}); err != nil {
			return err
		}
	}
	for _, service := range objects.Services {
		_, err := core.Services("default").Create(ctx, service, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = core.Services("default").Update(ctx, service, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	for _, slice := range objects.Slices {
		_, err := discovery.EndpointSlices("default").Create(ctx, slice, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = discovery.EndpointSlices("default").Update(ctx, slice, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	for _, namespace := range objects.Namespaces {
		if _, err := core.Namespaces().Create(ctx, namespace, metav1.CreateOptions{}); err != nil &&
			!apierrors.IsAlreadyExists(err) {
			return err
		}
	}
	for _, pod := range objects.Pods {
		_, err := core.Pods(pod.Namespace).Create(ctx, pod, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = core.Pods(pod.Namespace).Update(ctx, pod, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	return n.applyPolicies(ctx, objects.Policies)
}

func (n *Node) applyPolicies(ctx context.Context, policies []*networkingv1.NetworkPolicy) error {
	client := n.client.NetworkingV1()
	there, err := client.NetworkPolicies(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, old := range there.Items {
		if !slices.ContainsFunc(policies,
			func(p *networkingv1.NetworkPolicy) bool { return p.Namespace == old.Namespace && p.Name == old.Name }) {
			if err := client.NetworkPolicies(old.Namespace).Delete(ctx, old.Name, metav1.DeleteOptions{}); err != nil {
				return err
			}
		}
	}
	for _, policy := range policies {
		_, err := client.NetworkPolicies(policy.Namespace).Create(ctx, policy, metav1.CreateOptions{})
		if apierrors.IsAlreadyExists(err) {
			_, err = client.NetworkPolicies(policy.Namespace).Update(ctx, policy, metav1.UpdateOptions{})
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// Attach does what the kubelet does when it knows a pod's addresses.
func (n *Node) Attach(pod *corev1.Pod, _ *struct{}) error {
	ips := []string{pod.Status.PodIP}
	for _, ip := range pod.Status.PodIPs {
		ips = append(ips, ip.IP)
	}
	return n.network.Attach(context.Background(), pod, ips)
}

// Flush does what a firewall manager does that believes to be alone.
func (n *Node) Flush(struct{}, *struct{}) error {
	conn, err := nftables.New()
	if err != nil {
		return err
	}
	conn.FlushRuleset()
	return conn.Flush()
}

// AddPod links a new namespace to the node by the CNI configuration that the
// Network has written, as containerd does.
func (n *Node) AddPod(name string, ips *[]string) error {
	work := make(chan func())
	path := make(chan string, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread is the pod
		if _, err := netns.New(); err != nil {
			panic(err)
		}
		path <- fmt.Sprintf("/proc/%d/task/%d/ns/net", os.Getpid(), syscall.Gettid())
		for f := range work {
			f()
		}
	}()
	n.pods[name] = work

	var list *libcni.NetworkConfigList
	deadline := time.Now().Add(time.Minute)
	for {
		var err error
		if list, err = libcni.ConfListFromFile(filepath.Join(n.dir, "cni", "10-barque.conflist")); err == nil {
			break
		}
		if time.Now().After(deadline) {
			return err
		}
		runtime.Gosched()
	}
	cni := libcni.NewCNIConfigWithCacheDir([]string{filepath.Join(n.dir, "bin")}, filepath.Join(n.dir, "cache"), nil)
	result, err := cni.AddNetworkList(context.Background(), list,
		&libcni.RuntimeConf{ContainerID: name, NetNS: <-path, IfName: "eth0"})
	if err != nil {
		return err
	}
	current, err := types100.GetResult(result)
	if err != nil {
		return err
	}
	for _, ip := range current.IPs {
		*ips = append(*ips, ip.Address.IP.String())
	}
	listening := make(chan error)
	work <- func() { listening <- listen(name) }
	return <-listening
}

// listen answers "name client-address" on podPort, TCP and UDP, in the calling
// thread's namespace. The servers end with the process.
func listen(name string) error {
	tcp, err := net.Listen("tcp", fmt.Sprintf(":%d", podPort))
	if err != nil {
		return err
	}
	udp, err := net.ListenPacket("udp", fmt.Sprintf(":%d", podPort))
	if err != nil {
		return err
	}
	go func() {
		for {
			conn, err := tcp.Accept()
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(conn.RemoteAddr().String())
			fmt.Fprintf(conn, "%s %s", name, host)
			conn.Close()
		}
	}()
	go func() {
		buffer := make([]byte, 100)
		for {
			_, from, err := udp.ReadFrom(buffer)
			if err != nil {
				return
			}
			host, _, _ := net.SplitHostPort(from.String())
			if _, err := udp.WriteTo([]byte(name+" "+host), from); err != nil {
				return
			}
		}
	}()
	return nil
}

type ReachArgs struct {
	From    string
	Targets []string
}

// Reach tells which targets accept a TCP connection from a pod.
func (n *Node) Reach(args ReachArgs, reached *[]bool) error {
	failed := make(chan error)
	n.pods[args.From] <- func() {
		var err error
		*reached, err = reach(args.Targets)
		failed <- err
	}
	return <-failed
}

// reach connects to all targets at once in the calling thread's namespace, and looks for a second
// which are there.
func reach(targets []string) ([]bool, error) {
	reached := make([]bool, len(targets))
	polled := make([]unix.PollFd, len(targets))
	for i, target := range targets {
		to := netip.MustParseAddrPort(target)
		family, sockaddr := unix.AF_INET, unix.Sockaddr(&unix.SockaddrInet4{Port: int(to.Port())})
		if to.Addr().Is6() {
			family, sockaddr = unix.AF_INET6, &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
		} else {
			sockaddr.(*unix.SockaddrInet4).Addr = to.Addr().As4()
		}
		fd, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return nil, err
		}
		defer unix.Close(fd)
		polled[i] = unix.PollFd{Fd: int32(fd), Events: unix.POLLOUT}
		if err := unix.Connect(fd, sockaddr); err != nil && err != unix.EINPROGRESS {
			polled[i].Fd = -1
		}
	}
	const looks, each = 20, 50 // milliseconds: dropped packets get no answer, and all others are asked again
	for range looks {
		if _, err := unix.Poll(polled, each); err != nil && err != unix.EINTR {
			return nil, err
		}
		waiting := false
		for i := range polled {
			switch {
			case polled[i].Fd < 0:
			case polled[i].Revents != 0:
				code, err := unix.GetsockoptInt(int(polled[i].Fd), unix.SOL_SOCKET, unix.SO_ERROR)
				reached[i] = err == nil && code == 0
				polled[i].Fd = -1
			default:
				waiting = true
			}
		}
		if !waiting {
			break
		}
	}
	return reached, nil
}

type DialArgs struct{ From, Network, Addr string }

// Dial asks a server.
func (n *Node) Dial(args DialArgs, answer *string) error {
	if args.From == "" {
		*answer = ask(args.Network, args.Addr)
		return nil
	}
	done := make(chan struct{})
	n.pods[args.From] <- func() {
		defer close(done)
		*answer = ask(args.Network, args.Addr)
	}
	<-done
	return nil
}

// ask connects in the calling thread's namespace. UDP questions all come from
// one port: to the connection tracking they are one connection.
func ask(network, addr string) string {
	if transport, ok := strings.CutPrefix(network, "dns/"); ok {
		return askName(transport, addr)
	}
	var size int
	if n, _ := fmt.Sscanf(network, "whole/%d", &size); n == 1 {
		return askWhole(size, addr)
	}
	dialer := net.Dialer{Timeout: time.Second} // brief: dropped packets get no answer, and all others are asked again
	if transport, ok := strings.CutPrefix(network, "patiently/"); ok {
		network, dialer.Timeout = transport, await.Hang
	}
	if strings.HasPrefix(network, "udp") {
		dialer.LocalAddr = &net.UDPAddr{Port: 5000}
	}
	conn, err := dialer.Dial(network, addr)
	if err != nil {
		return "error: " + err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(time.Second)) // brief: as for the connection
	if strings.HasPrefix(network, "udp") {
		if _, err := conn.Write([]byte("?")); err != nil {
			return "error: " + err.Error()
		}
		buffer := make([]byte, 100)
		n, err := conn.Read(buffer)
		if err != nil {
			return "error: " + err.Error()
		}
		return string(buffer[:n])
	}
	content, err := io.ReadAll(conn)
	if err != nil {
		return "error: " + err.Error()
	}
	return strings.TrimSpace(string(content))
}

// askWhole asks over UDP with a packet of the size, which nobody on the way may take apart.
func askWhole(size int, addr string) string {
	to := netip.MustParseAddrPort(addr)
	network, header, level, option, value := "udp4", 28, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_DO
	if to.Addr().Is6() {
		network, header, level, option, value = "udp6", 48, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER,
			unix.IPV6_PMTUDISC_DO
	}
	dialer := net.Dialer{Control: func(_, _ string, raw syscall.RawConn) (failed error) {
		err := raw.Control(func(fd uintptr) { failed = unix.SetsockoptInt(int(fd), level, option, value) })
		return errors.Join(err, failed)
	}}
	conn, err := dialer.Dial(network, addr)
	if err != nil {
		return "error: " + err.Error()
	}
	defer conn.Close()
	_ = conn.SetDeadline(
		time.Now().Add(time.Second)) // brief: dropped packets get no answer, and all others are asked again
	if _, err := conn.Write(make([]byte, size-header)); err != nil {
		return "error: " + err.Error()
	}
	buffer := make([]byte, 100)
	n, err := conn.Read(buffer)
	if err != nil {
		return "error: " + err.Error()
	}
	return string(buffer[:n])
}

// askName asks a name server for the web service's addresses.
func askName(transport, addr string) string {
	client := &mdns.Client{Net: transport, Timeout: time.Second}
	var answer string
	for _, kind := range []uint16{mdns.TypeA, mdns.TypeAAAA} {
		reply, _, err := client.Exchange(new(mdns.Msg).SetQuestion("web.default.svc.cluster.local.", kind), addr)
		if err != nil {
			return "error: " + err.Error()
		}
		if answer == "" {
			answer = mdns.RcodeToString[reply.Rcode]
		}
		for _, record := range reply.Answer {
			switch record := record.(type) {
			case *mdns.A:
				answer += " " + record.A.String()
			case *mdns.AAAA:
				answer += " " + record.AAAA.String()
			}
		}
	}
	return answer
}
