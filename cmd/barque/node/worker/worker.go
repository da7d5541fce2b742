// Package worker starts the part of a node that runs pods: it connects the container runtime, the
// network, the gateway and the kubelet.
package worker

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/informers"
	coreinformers "k8s.io/client-go/informers/core/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcorev1 "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
	clientrecord "k8s.io/client-go/tools/record"

	"github.com/barque/barque/apiserver/nodeleases"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/edge/bgp"
	"github.com/barque/barque/edge/gateway"
	"github.com/barque/barque/internal/lastevents"
	"github.com/barque/barque/internal/lifecycle"
	"github.com/barque/barque/internal/nodename"
	"github.com/barque/barque/internal/processmetrics"
	"github.com/barque/barque/internal/resolvconf"
	"github.com/barque/barque/internal/version"
	"github.com/barque/barque/kubelet"
	kubeletconfig "github.com/barque/barque/kubelet/config"
	"github.com/barque/barque/kubelet/containerd"
	"github.com/barque/barque/kubelet/exits"
	"github.com/barque/barque/kubelet/rootdir"
	"github.com/barque/barque/membership/liveness"
	"github.com/barque/barque/membership/members"
	"github.com/barque/barque/network"
	"github.com/barque/barque/network/dns"
	"github.com/barque/barque/network/faults"
)

// Worker is the part of a node that runs pods: runtime, network, kubelet. Servers and agents have
// the same.
type Worker struct {
	Options  *options.Options
	Settings options.Settings
	Client   *rest.Config                  // as system:node:<name>
	TLS      *tls.Config                   // of the node's own server
	Revoked  func(*x509.Certificate) error // of its callers
	Changed  []func() <-chan struct{}      // when more may be revoked
	Health   *liveness.Health
	Leaving  func()                 // tells the others that this node is about to leave
	Certs    []prometheus.Collector // of the node's certificates
	Logger   *slog.Logger
	Delay    func() time.Duration // how late this process is scheduled
	// Gateway has the objects of the gateway and the client that reads Secrets as its account.
	// Without objects, the worker makes them of informers of its own.
	Gateway Gateway
	// BGP has the objects that the node announces by. Without them, the worker makes its own.
	BGP *bgp.Objects
	// ForServers are handlers of the node's own server, by path, for servers of the cluster alone.
	ForServers map[string]http.Handler
	// Made is called with the node's network, if it is not nil.
	Made func(*network.Network)
	// Registered is closed once the API server has the Node. Start sets it.
	Registered <-chan struct{}
}

// Start starts the parts in the order of their dependencies.
func (w *Worker) Start(ctx context.Context, stack *lifecycle.Stack) error {
	o := w.Options
	client, err := kubernetes.NewForConfig(w.Client)
	if err != nil {
		return err
	}
	endpoint, cniDir := o.ContainerRuntimeEndpoint, options.UsualCNIConfDir
	if endpoint == "" && !o.OtherNetwork() {
		cniDir = containerd.CNIConfDir(o.DataDir)
	}
	if err := notePlaces(o.DataDir, w.places(cniDir)); err != nil {
		return err
	}
	var ends exits.Dir
	if endpoint == "" {
		runtime, err := containerd.New(
			containerd.Config{DataDir: o.DataDir, RegistryDir: o.RegistryDir, CNIConfDir: o.CNIConfDir(),
				Logger: w.Logger.With("part", "containerd")})
		if err != nil {
			return err
		}
		endpoint = "unix://" + runtime.Socket()
		ends = runtime.Exits()
		if err := stack.Start(ctx,
			lifecycle.Component{Name: "containerd", Run: runtime.Run, Ready: waitFor(runtime.Ready()),
				StopTimeout: 15 * time.Second}); err != nil {
			return err
		}
	}
	factory := informers.NewSharedInformerFactory(client, 0)
	// A node may list its own pods only.
	own := informers.NewSharedInformerFactoryWithOptions(client, 0,
		informers.WithTweakListOptions(func(opts *metav1.ListOptions) {
			opts.FieldSelector = fields.OneTermEqualSelector("spec.nodeName", o.Name).String()
		}))
	rules := informers.NewSharedInformerFactoryWithOptions(client, 0, informers.WithNamespace(dns.ServiceNamespace),
		informers.WithTweakListOptions(func(opts *metav1.ListOptions) {
			opts.FieldSelector = fields.OneTermEqualSelector(metav1.ObjectNameField, dns.RulesName).String()
		}))
	events := clientrecord.NewBroadcaster(clientrecord.WithCorrelatorOptions(faults.Options))
	aboutNode := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: faults.Component, Host: o.Name})
	packets, err := network.New(network.Config{
		NodeName: o.Name, Addresses: o.Addresses, Detected: o.Detected, PodNetworks: w.Settings.ClusterCIDRs,
		ServiceNetworks: w.Settings.ServiceCIDRs,
		OtherPlugin:     o.OtherNetwork(), Overlay: o.Overlay,
		WireGuard: network.WireGuardConfig{Port: o.WireGuardPort, KeyFile: filepath.Join(o.DataDir, "wireguard.key")},
		Announce:  client.CoreV1().Nodes(),
		Nodes:     factory.Core().V1().Nodes(), Services: factory.Core().V1().Services(),
		EndpointSlices: factory.Discovery().V1().EndpointSlices(),
		Pods:           own.Core().V1().Pods(),
		Policies:       factory.Networking().V1().NetworkPolicies(), Namespaces: factory.Core().V1().Namespaces(),
		Peers:      coreinformers.NewPodInformer(client, metav1.NamespaceAll, 0, cache.Indexers{}),
		DNS:        w.dns(factory, rules, events),
		CNIConfDir: cniDir, IPAMDir: filepath.Join(o.DataDir, "ipam"),
		SettingsFile: network.SettingsFile(o.DataDir), Logger: w.Logger.With("part", "network"),
		Tell: func(kind, reason, message string) {
			aboutNode.Event(&corev1.ObjectReference{Kind: "Node", Name: o.Name, UID: types.UID(o.Name)}, kind, reason,
				message)
		},
	})
	if err != nil {
		return err
	}
	if w.Made != nil {
		w.Made(packets)
	}
	root, err := rootdir.Claim(ctx, o.KubeletRootDir, o.DataDir)
	if err != nil {
		return err
	}
	routes, collectors, err := w.routes(client, factory, aboutNode)
	if err != nil {
		return errors.Join(err, root.Close())
	}
	announcing, sessions, freeze, err := w.announcing(client, factory, aboutNode)
	if err != nil {
		return errors.Join(err, root.Close())
	}
	routes = append(routes, announcing...)
	w.Certs = slices.Concat(w.Certs, collectors, sessions)
	agent, err := w.kubelet(client, endpoint, ends, factory, own, packets)
	if err != nil {
		return errors.Join(err, root.Close())
	}
	w.Registered = agent.Registered()
	// The kubelet registers the node, which gets its addresses then, which the network needs.
	if err := stack.Start(ctx, lifecycle.Component{Name: "node", Run: func(ctx context.Context) error {
		defer lastevents.Start(events,
			faults.Sink{
				EventSink: &typedcorev1.EventSinkImpl{Interface: client.CoreV1().Events(metav1.NamespaceAll)}})()
		defer root.Close() // another process may take it then
		return withInformers(ctx, []informers.SharedInformerFactory{factory, own, rules},
			append(routes, agent.Run, packets.Run, w.Health.Run)...)
	}, StopTimeout: 20 * time.Second}); err != nil {
		return err
	}
	// The node controller must know why the kubelet ends, before that. The gossip ends last.
	return stack.Start(ctx, lifecycle.Component{Name: "good-bye", Run: func(ctx context.Context) error {
		<-ctx.Done()
		freeze()
		w.Leaving()
		return nil
	}})
}

// dns returns the configuration of cluster DNS on this node. Wrong rules get an event.
func (w *Worker) dns(factory, rules informers.SharedInformerFactory, events clientrecord.EventBroadcaster) *dns.Config {
	recorder := events.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "cluster-dns", Host: w.Options.Name})
	return &dns.Config{
		Domain: w.Settings.Domain, Addresses: []netip.Addr{w.Settings.DNSAddr()}, ResolvConf: resolvconf.Default,
		File:       filepath.Join(w.Options.DataDir, "cluster-dns.json"),
		Namespaces: factory.Core().V1().Namespaces(), Rules: rules.Core().V1().ConfigMaps(),
		Refused: func(of *corev1.ConfigMap, err error) {
			recorder.Eventf(of, corev1.EventTypeWarning, "InvalidRules", "The earlier rules stay in use: %v", err)
		},
	}
}

// withInformers runs everything with the factories' informers until ctx or one of them ends.
func withInformers(
	ctx context.Context, factories []informers.SharedInformerFactory, run ...func(context.Context) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	for _, f := range factories {
		f.Start(ctx.Done())
		defer f.Shutdown()
	}
	defer cancel() // before the wait for the informers, which end with ctx
	return lifecycle.All(ctx, run...)
}

func (w *Worker) kubeletSettings() *kubeletconfig.Configuration {
	if w.Options.Kubelet == nil {
		return kubeletconfig.Default()
	}
	return w.Options.Kubelet
}

func (w *Worker) kubelet(
	client kubernetes.Interface, endpoint string, ends exits.Dir, factory, own informers.SharedInformerFactory,
	packets *network.Network,
) (*kubelet.Kubelet, error) {
	o := w.Options
	taints, err := options.ParseTaints(o.Taints)
	if err != nil {
		return nil, err
	}
	if len(o.KubeletIgnored) > 0 {
		w.Logger.Warn(
			"the kubelet's configuration has fields without effect here; docs/node.md lists the effective ones",
			"fields", strings.Join(o.KubeletIgnored, ", "))
	}
	settings := w.kubeletSettings()
	var importImages func(context.Context, io.Reader) ([]string, error)
	if o.ContainerRuntimeEndpoint == "" {
		importImages = func(ctx context.Context, tar io.Reader) ([]string, error) {
			return containerd.Import(ctx, endpoint, tar)
		}
	}
	services := factory.Core().V1().Services()
	return kubelet.New(kubelet.Config{
		NodeName: o.Name, NodeIPs: o.Addresses.Internal, NodeExternalIPs: o.Addresses.External,
		Labels: nodeLabels(o, w.Logger), Taints: taints, Version: version.String(),
		ExternalCloud: o.CloudProvider == options.ExternalCloud,
		Client:        client, Services: services.Lister(), ServicesSynced: services.Informer().HasSynced,
		Pods:          own.Core().V1().Pods().Informer(),
		ServerAddress: o.At(o.KubeletPort).String(), ServerTLS: w.TLS, ServerLimits: o.Serving.Limits(),
		Revoked: w.Revoked, RevokedChanged: w.Changed,
		RuntimeEndpoint: endpoint, ImportImages: importImages, ForServers: w.ForServers, Exits: ends,
		VolumesDir: o.VolumesDir,
		LogDir:     settings.PodLogsDir, LogLinkDir: linksBeside(settings.PodLogsDir),
		OldLogDir: filepath.Join(o.DataDir, "pods-log"),
		RootDir:   o.KubeletRootDir, CgroupRoot: o.CgroupRoot, CgroupParents: ownParents(o.CgroupRoot),
		ClusterDNS: []netip.Addr{w.Settings.DNSAddr()}, ClusterDomain: w.Settings.Domain,
		ResolvConf: resolvconf.Default,
		Network:    packets, Moved: packets.Moved,
		Collectors: slices.Concat(packets.Collectors(), w.Certs, processmetrics.Collectors()),
		Found:      func(i kubelet.Faults) { w.Health.Found(faultBits(i)) }, Settings: settings,
		SchedulingDelay: w.Delay, Logger: w.Logger.With("part", "kubelet"),
	})
}

// ownParents returns Barque's own cgroups above a node's root. They are /barque of the default
// roots, and /barque-dev-NAME of the nodes of a dev cluster.
func ownParents(root string) []string {
	top, below, _ := strings.Cut(strings.TrimPrefix(filepath.Clean(root), "/"), "/")
	if below != "" && (top == "barque" || strings.HasPrefix(top, "barque-dev-")) {
		return []string{"/" + top}
	}
	return nil
}

// waitFor is a lifecycle.Component's Ready out of a channel.
func waitFor(ready <-chan struct{}) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ready:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// nodeLabels returns the labels that a node registers with, among them the mark of a member and the
// node's profile. Roles
// are set by controllers/noderole. A label that the API server would refuse is left out, because
// the whole report of the node would be refused with it: a machine that joins is told, and one that
// has joined goes on.
func nodeLabels(o *options.Options, logger *slog.Logger) map[string]string {
	labels := map[string]string{}
	if o.Zone != "" {
		labels["topology.kubernetes.io/zone"] = o.Zone
	}
	for k, v := range o.Labels {
		if err := nodename.CheckLabel(k, v); err != nil {
			logger.Warn("a label of --node-label is left out", "reason", err)
			continue
		}
		labels[k] = v
	}
	labels[nodeleases.MemberLabel] = ""
	if !o.NoGateway {
		labels[gateway.NodeLabel] = ""
	}
	labels[members.ProfileLabel] = cmp.Or(o.Profile, options.NoProfile)
	return labels
}
