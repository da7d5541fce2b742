package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/barque/barque/apiserver"
	"github.com/barque/barque/apiserver/admission/registry"
	"github.com/barque/barque/apiserver/audit"
	"github.com/barque/barque/apiserver/authorizers"
	"github.com/barque/barque/apiserver/encryption/provider"
	"github.com/barque/barque/apiserver/logins"
	"github.com/barque/barque/backups"
	"github.com/barque/barque/cmd/barque/command"
	"github.com/barque/barque/cmd/barque/node"
	"github.com/barque/barque/cmd/barque/node/options"
	"github.com/barque/barque/internal/sdnotify"
	"github.com/barque/barque/internal/tail"
	"github.com/barque/barque/kubelet/rootdir"
	"github.com/barque/barque/membership/enroll"
	"github.com/barque/barque/network/overlay"
	"github.com/barque/barque/network/ranges"
	"github.com/barque/barque/network/wireguard"
	"github.com/barque/barque/pki"
	schedulerconfig "github.com/barque/barque/scheduler/config"
	"github.com/barque/barque/upgrade/release"
)

// Default ports of nodes.
const (
	defaultAPIPort     = 6443
	defaultPeerPort    = 6444
	defaultKubeletPort = 10250
)

// Roles that a machine can have.
const (
	roleServer = "server"
	roleAgent  = "agent"
)

// smallestStoreMemory is in bytes. It has room for an empty cluster. A smaller limit is a typing
// error that would stop all writes once that server leads.
const smallestStoreMemory = 16 << 20

// nodeFlags are the flags of a server and of an agent.
type nodeFlags struct {
	options                  options.Options
	tokenFile                string
	labels                   []string
	logLevel                 string
	storeMemory              string
	releaseKeys              []string
	schedulerConfig          string
	controllerWorkers        map[string]*int
	kubelet                  kubeletFlags
	gateway                  gatewayFlags
	clusterCIDR, serviceCIDR string
}

func addNodeFlags(c *cobra.Command) *nodeFlags {
	f := &nodeFlags{
		options: options.Options{Settings: options.DefaultSettings(), Times: options.DefaultTimes(),
			Tokens: options.DefaultTokenOptions(), Backups: backups.DefaultOptions()}}
	o, flags := &f.options, c.Flags()
	flags.StringVar(&o.DataDir, "data-dir", command.DefaultDataDir, "where everything of this node is kept")
	flags.StringVar(&o.Name, "name", "", "name of this node (default: the host's)")
	flags.StringSliceVar(&o.NodeIPs, "node-ip", nil,
		"address at which other nodes reach this one, or one IPv4 and one IPv6 address (default: those of the default routes)")
	flags.StringSliceVar(&o.NodeExternalIPs, "node-external-ip", nil,
		"address that the Node object shows as its external one, or one of each family")
	flags.StringVar(&o.Network, "network", options.OwnNetwork,
		"provider of the pod network: barque, or none for a network plugin of your own, configured in /etc/cni/net.d; give it to all nodes")
	flags.StringVar((*string)(&o.Overlay.Mode), "overlay", string(overlay.Auto),
		"transport of pod traffic between nodes: auto uses VXLAN to nodes of other layer-2 networks, vxlan to all; auto-wireguard and wireguard encrypt it; none uses routes only")
	flags.Uint32Var(&o.Overlay.VNI, "vxlan-vni", overlay.DefaultVNI,
		"network identifier of VXLAN; give it to all nodes")
	flags.Uint16Var(&o.Overlay.Port, "vxlan-port", overlay.DefaultPort, "UDP port of VXLAN; give it to all nodes")
	flags.Uint16Var(&o.WireGuardPort, "wireguard-port", wireguard.DefaultPort,
		"UDP port at which this node takes packets in WireGuard; the others learn it")
	flags.StringVar(&o.CloudProvider, "cloud-provider", "",
		"external: a cloud-controller-manager of yours initializes nodes and serves load balancers; give it to all nodes (default: Barque serves load balancers)")
	flags.StringVar(&o.Zone, "zone", "", "failure zone that this node is in")
	flags.StringArrayVar(&f.labels, "node-label", nil, "label of this node, key=value; may be repeated")
	flags.StringArrayVar(&o.Taints, "node-taint", nil,
		"taint that this node registers with, key=value:Effect; may be repeated; none is no taint, in place of the profile's")
	flags.StringVar(&o.Token, "token", "", "join token; 'barque token create' makes one")
	flags.StringVar(&f.tokenFile, "token-file", "",
		"file that holds the join token (other users cannot read it from the list of processes)")
	flags.Uint16Var(&o.GossipPort, "gossip-port", 0,
		fmt.Sprintf("port of the gossip between nodes, TCP and UDP (default: the cluster's; %d in a new one)",
			enroll.GossipPort))
	flags.Uint16Var(&o.KubeletPort, "kubelet-port", defaultKubeletPort, "port of this node's own server")
	flags.StringVar(&o.ContainerRuntimeEndpoint, "container-runtime-endpoint", "",
		"CRI socket of an existing containerd or CRI-O (default: a containerd of our own)")
	flags.StringVar(&o.RegistryDir, "registries", "",
		"registry mirrors and credentials, in the layout of containerd's certs.d (default: DATA-DIR/registries)")
	flags.StringVar(&o.VolumesDir, "local-volumes-dir", "",
		"where the volumes of this node are that the cluster makes for claims (default: DATA-DIR/volumes)")
	flags.StringVar(&o.KubeletRootDir, "kubelet-root-dir", "",
		"where the volumes of pods and the sockets of plugins are (default: "+rootdir.Default+
			", where CSI drivers expect them; DATA-DIR/kubelet while pods from an earlier version of the node keep their volumes there)")
	flags.StringVar(&o.CgroupRoot, "cgroup-root", "", "cgroup below which the pods run (default: /barque/NAME)")
	flags.StringArrayVar(&f.releaseKeys, "release-key", nil,
		"public key of minisign, or a file with one, by which this node believes releases in an upgrade; may be repeated")
	flags.StringVar(&f.logLevel, "log-level", "info", "debug, info, warn or error")
	addKubeletFlags(c, &f.kubelet)
	addGatewayFlags(c, o, &f.gateway)
	o.Serving.AddFlags(flags)
	addProfileFlags(c, f)
	return f
}

func addServerFlags(c *cobra.Command, f *nodeFlags) {
	o, flags := &f.options, c.Flags()
	flags.StringVar(&o.Join, "join", "",
		"address of a server to join, https://HOST:6443; without it a new cluster begins")
	flags.BoolVar(&o.Replace, "replace", false,
		"with --join: take the place of a server of the same name that is dead, as a rebuilt machine does")
	flags.BoolVar(&o.Wipe, "wipe", false,
		"with --join: drop the store of this server, which was removed from the cluster or superseded by a recovery, and join as a new one")
	flags.StringSliceVar(&o.Peers, "peers", nil,
		"IP addresses of other servers, for when the addresses of all have changed; needed until they have found each other")
	flags.DurationVar(&o.DeadServerCleanup, "dead-server-cleanup-after", 0,
		"take a server that shows no life for so long out of the store, if --min-voters stay; 0 is never")
	flags.IntVar(&o.MinVoters, "min-voters", 3, "how many voters must stay when a dead server is taken out")
	flags.Uint16Var(&o.APIPort, "api-port", defaultAPIPort, "port of the API")
	flags.Uint16Var(&o.PeerPort, "peer-port", defaultPeerPort, "port of the traffic between servers")
	flags.StringVar(&f.clusterCIDR, "cluster-cidr", o.Settings.ClusterCIDRs.String(),
		"addresses of pods: an IPv4 range, an IPv6 range, or both; counts on the first server only")
	flags.StringVar(&f.serviceCIDR, "service-cidr", o.Settings.ServiceCIDRs.String(),
		"addresses of services, of the same families in the same order; counts on the first server only")
	flags.StringVar(&o.Settings.Domain, "cluster-domain", o.Settings.Domain,
		"DNS domain of the cluster; counts on the first server only")
	flags.BoolVar(&o.NoNode, "no-node", false, "run no pods on this server")
	flags.StringVar(&o.LogStore, "raft-log-store", "boltdb",
		"format of the store's log: boltdb (one file) or wal (segments, faster); a log of the other format is converted at the start")
	flags.DurationVar(&o.DiskWriteTimeout, "raft-disk-write-timeout", 2*time.Second,
		"after how long a write to the store's log that is not done makes a server give up leadership")
	flags.IntVar(&o.DiskReserve, "raft-disk-reserve", 64,
		"MiB of disk space that the store reserves for a full disk, an eighth of the volume at most; 0 is none")
	flags.Uint64Var(&o.SnapshotEntries, "raft-snapshot-entries", 16<<10,
		"number of log entries after which the store takes a snapshot; half of them stay in the log for lagging servers")
	flags.DurationVar(&o.Backups.Every, "snapshot-schedule", o.Backups.Every,
		"how often this server makes a backup of the cluster; 0 is never")
	flags.IntVar(&o.Backups.Keep, "snapshot-retention", o.Backups.Keep, "how many of these backups stay")
	flags.StringVar(&o.Backups.Dir, "snapshot-dir", "", "where these backups go (default: DATA-DIR/snapshots)")
	flags.StringVar(&o.Backups.KeyFile, "snapshot-key-file", "",
		"file with the key that seals these backups; 'barque snapshot key' makes one")
	flags.BoolVar(&o.Backups.Unsealed, "snapshot-unsealed", false,
		"make these backups without a key: the keys of the cluster are not in them, and only this cluster can restore encrypted Secrets from them")
	flags.StringVar(&o.Restore.File, "restore-from", "",
		"backup whose state a new cluster starts from, on an empty data directory")
	flags.StringVar(&o.Restore.KeyFile, "restore-key-file", "", "file with the key that opens this backup")
	flags.Uint64Var(&o.Restore.Gap, "restore-revision-gap", backups.DefaultRevisionGap,
		"by how much the revision of the new cluster is above that of the backup")
	flags.StringVar(&f.storeMemory, "store-memory-limit", "",
		"memory limit of all objects in the store, such as 2Gi; the leader's limit applies (default: a quarter of this machine's memory, from 256Mi to 8Gi)")
	flags.StringVar(&o.CAFile, "ca-file", "",
		"certificates of a CA of your own for a new cluster, PEM: the cluster's CA, then each one's issuer, up to the root; counts on the first server only, when the cluster begins")
	flags.StringVar(&o.CAKeyFile, "ca-key-file", "",
		"file with the key of that CA, for its owner only (mode 0600); not needed after the start")
	flags.DurationVar(&o.CertificateLifetime, "certificate-lifetime", pki.LeafLifetime,
		"how long certificates last that this server issues; they are renewed when two thirds of it are over")
	flags.DurationVar(&o.CertificateGrace, "certificate-grace", options.DefaultCertificateGrace,
		"time after the expiry of its certificates in which an agent that was off gets new ones, while its Node exists; 0 is never")
	flags.StringVar(&f.schedulerConfig, "scheduler-config-file", "",
		"file with the scheduling policy, a KubeSchedulerConfiguration of kubescheduler.config.k8s.io/v1; give it to all servers")
	flags.StringVar(&o.DefaultStorageClass, "default-storage-class", options.DefaultStorageClass,
		"name of the StorageClass of local volumes that the cluster creates once, for claims without a class; none creates no class")
	flags.StringSliceVar(&o.AgentCIDRs, "agent-cidr", nil,
		"range of public addresses that joining agents may have although they call from another one, as through a load balancer; give it to all servers")
	o.Tokens.AddFlags(flags)
	addTimeFlags(c, &o.Times)
	addAdmissionFlags(c, &o.Admission)
	addSecurityFlags(c, o)
	addControllerFlags(c, &o.Controllers, &f.controllerWorkers)
	o.Limits = new(apiserver.DefaultLimits())
	addLimitFlags(c, o.Limits)
	o.Audit = audit.NewOptions()
	o.Audit.AddFlags(flags)
	o.Logins, o.Authorization = logins.NewOptions(), authorizers.NewOptions()
	o.Logins.AddFlags(flags)
	o.Authorization.AddFlags(flags)
	o.Providers = new(provider.Options)
	o.Providers.AddFlags(flags)
	o.Serving.AddServerFlags(flags)
	o.Switches.AddFlags(flags)
}

// addAdmissionFlags adds the flags of kube-apiserver that choose admission plugins.
func addAdmissionFlags(c *cobra.Command, s *registry.Settings) {
	flags := c.Flags()
	flags.StringSliceVar(&s.Enable, "enable-admission-plugins", nil,
		"admission plugins to run in addition to the defaults; give it to all servers. All plugins: "+
			strings.Join(registry.Names(), ", "))
	flags.StringSliceVar(&s.Disable, "disable-admission-plugins", nil,
		"default admission plugins not to run; give it to all servers. Defaults: "+
			strings.Join(registry.Defaults(), ", "))
	flags.StringVar(&s.ConfigFile, "admission-control-config-file", "",
		"file with the configuration of admission plugins, an AdmissionConfiguration")
}

// addLimitFlags adds the flags of kube-apiserver that bound the requests in flight.
func addLimitFlags(c *cobra.Command, l *apiserver.Limits) {
	flags := c.Flags()
	flags.BoolVar(&l.Fairness, "enable-priority-and-fairness", l.Fairness,
		"share the API out by FlowSchemas and PriorityLevelConfigurations")
	flags.IntVar(&l.InFlight, "max-requests-inflight", l.InFlight,
		"maximum number of concurrent read requests; with priority and fairness, the sum of this and --max-mutating-requests-inflight is shared out, otherwise 0 is no limit")
	flags.IntVar(&l.MutatingInFlight, "max-mutating-requests-inflight", l.MutatingInFlight,
		"the same for requests that write")
}

// completeRootDir sets the kubelet's directory if the options have none.
func completeRootDir(o *options.Options) error {
	if o.NoNode {
		return nil
	}
	dir, notice, err := rootdir.Complete(o.DataDir, o.KubeletRootDir)
	if err != nil {
		return err
	}
	o.KubeletRootDir = dir
	if notice != "" {
		fmt.Fprintf(os.Stderr, "barque: %s\n", notice)
	}
	return nil
}

// complete reads the files that the flags refer to, and validates the flags.
func (f *nodeFlags) complete(c *cobra.Command) (options.Options, error) {
	if err := f.completeProfile(c); err != nil {
		return f.options, command.Usage(c, err)
	}
	o := f.options
	wrong := func(err error) (options.Options, error) { return o, command.Usage(c, err) }
	if f.tokenFile != "" {
		if o.Token != "" {
			return wrong(fmt.Errorf("give --token or --token-file, not both"))
		}
		data, err := os.ReadFile(f.tokenFile)
		switch {
		case errors.Is(err, fs.ErrNotExist) && enroll.HasJoined(o.DataDir):
			fmt.Fprintf(os.Stderr, "barque: --token-file %s does not exist, and is not needed: this node has joined\n",
				f.tokenFile)
		case err != nil:
			return o, fmt.Errorf("join token: %w", err)
		}
		o.Token = strings.TrimSpace(string(data))
	}
	keys, err := release.ReadKeys(f.releaseKeys)
	if err != nil {
		return wrong(fmt.Errorf("--release-key: %w", err))
	}
	o.ReleaseKeys = keys
	if err := o.Times.Complete(c.Flags().Changed); err != nil {
		return wrong(err)
	}
	if err := completePaths(&o); err != nil {
		return wrong(err)
	}
	if err := o.Admission.Check(); err != nil {
		return wrong(err)
	}
	if err := completeControllers(&o.Controllers, f.controllerWorkers); err != nil {
		return wrong(err)
	}
	if o.Limits != nil {
		if err := o.Limits.Check(); err != nil {
			return wrong(err)
		}
	}
	if err := f.kubelet.complete(c, &o); err != nil {
		return wrong(err)
	}
	if f.schedulerConfig != "" {
		policy, err := schedulerconfig.Load(f.schedulerConfig)
		if err != nil {
			return wrong(fmt.Errorf("--scheduler-config-file: %w", err))
		}
		o.Scheduling = policy
	}
	if (o.Replace || o.Wipe) && o.Join == "" {
		return wrong(fmt.Errorf("--replace and --wipe belong to joining: give --join"))
	}
	if err := completeRootDir(&o); err != nil {
		return o, err
	}
	if err := f.gateway.complete(&o); err != nil {
		return wrong(err)
	}
	o.Labels = map[string]string{}
	for _, l := range f.labels {
		key, value, ok := strings.Cut(l, "=")
		if !ok {
			return wrong(fmt.Errorf("--node-label %q: want key=value", l))
		}
		o.Labels[key] = value
	}
	if err := o.LogLevel.UnmarshalText([]byte(f.logLevel)); err != nil {
		return wrong(fmt.Errorf("--log-level %q: want debug, info, warn or error", f.logLevel))
	}
	for _, cidr := range []struct {
		flag, text string
		into       *ranges.Prefixes
	}{{"cluster-cidr", f.clusterCIDR, &o.Settings.ClusterCIDRs},
		{"service-cidr", f.serviceCIDR, &o.Settings.ServiceCIDRs}} {
		if cidr.text == "" {
			continue
		}
		prefixes, err := ranges.ParsePrefixes(cidr.text)
		if err != nil {
			return wrong(fmt.Errorf("--%s: %w", cidr.flag, err))
		}
		*cidr.into = prefixes
	}
	if f.storeMemory != "" {
		limit, err := resource.ParseQuantity(f.storeMemory)
		if err != nil || limit.Value() < smallestStoreMemory {
			return wrong(fmt.Errorf("--store-memory-limit %q: want a size such as 2Gi, 16Mi at least", f.storeMemory))
		}
		o.StoreMemory = limit.Value()
	}
	if o.LogStore != "" && o.LogStore != "boltdb" && o.LogStore != "wal" {
		return wrong(fmt.Errorf("--raft-log-store %q: want boltdb or wal", o.LogStore))
	}
	if o.DiskReserve < 0 || o.DiskWriteTimeout < 0 {
		return wrong(fmt.Errorf("--raft-disk-reserve and --raft-disk-write-timeout cannot be negative"))
	}
	if o.SnapshotEntries != 0 && o.SnapshotEntries < smallestSnapshotEntries {
		return wrong(
			fmt.Errorf("--raft-snapshot-entries %d: want %d at least", o.SnapshotEntries, smallestSnapshotEntries))
	}
	if err := o.Check(); err != nil {
		return wrong(err)
	}
	o.Flags = effective(c.Flags())
	return o, nil
}

// smallestSnapshotEntries keeps a server from snapshotting all the time.
const smallestSnapshotEntries = 100

// keptLog is how many bytes of its log a node keeps in memory, for `barque cluster doctor`.
const keptLog = 2 << 20

// nodeLogger is newLogger for a node, which keeps the end of its log.
func nodeLogger(o *options.Options) *slog.Logger {
	kept := tail.New(keptLog)
	o.Logs = kept
	return slog.New(slog.NewTextHandler(io.MultiWriter(os.Stderr, kept), &slog.HandlerOptions{Level: o.LogLevel}))
}

func serverCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "server",
		Short: "Run a server: datastore, API, controllers, scheduler and a node",
		Long: `Run a server: datastore, API, controllers, scheduler and a node. The first server
begins the cluster; the others join it with a token. Three servers survive the loss
of any one.`,
		Example: `  barque server                                          # on the first machine
  barque token create --role server                      # there, prints a token
  barque server --join https://10.0.0.1:6443 --token T   # on the second and third`,
		Args: command.NoArgs,
	}
	f := addRoleFlags(cmd, roleServer)
	withSettings(cmd, roleServer)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		o, err := f.complete(c)
		if err != nil {
			return err
		}
		if err := o.CheckServer(); err != nil {
			return command.Usage(c, err)
		}
		return runNode(c.Context(), &o, nodeLogger(&o), node.RunServer, os.Args)
	}
	return cmd
}

func addAgentFlags(c *cobra.Command, f *nodeFlags) {
	o, flags := &f.options, c.Flags()
	flags.StringVar(&o.Join, "server", "",
		"address of any server, https://HOST:6443; the others are found by gossip")
	flags.BoolVar(&o.Rejoin, "rejoin", false,
		"join again with --server and --token, after the cluster was restored from a backup, or this node was removed; the pods stay")
	flags.Uint16Var(&o.APIPort, "api-port", defaultAPIPort,
		"port of 127.0.0.1 that leads to the living API servers")
}

// runNode runs a node, and reports its state to systemd. A node that must be started again is
// started with the arguments next.
func runNode(
	ctx context.Context, o *options.Options, logger *slog.Logger,
	of func(context.Context, options.Options, *slog.Logger) error, next []string,
) error {
	debug.SetTraceback("crash") // a crash ends by SIGABRT: exit code 2 is of wrong arguments alone
	o.State = sdnotify.Take(logger)
	stopped := ctx
	ctx, again, isAgain := restarts(ctx)
	o.Again = again
	go o.State.Starting(ctx) // ends when the node is ready, or stops
	defer context.AfterFunc(ctx, func() {
		if isAgain() {
			o.State.Reloading()
		} else {
			o.State.Stopping()
		}
	})()
	err := of(ctx, *o, logger)
	switch {
	case stopped.Err() != nil:
		return err
	case isAgain():
		if err != nil {
			logger.Warn("the node has stopped with an error, and is started again", "err", err)
		}
		return launched.Again(next, o.State.Environ())
	case errors.Is(err, node.ErrRestart):
		// The process ID stays, so a supervisor sees no restart.
		o.State.Reloading()
		return launched.Same(next, o.State.Environ())
	}
	return err
}

// withoutRejoin are the arguments of an agent that has joined again.
func withoutRejoin(args []string) []string {
	return slices.DeleteFunc(slices.Clone(args),
		func(a string) bool { return a == "--rejoin" || strings.HasPrefix(a, "--rejoin=") })
}

func agentCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "agent",
		Short:   "Run an agent: a node that runs pods, without a part of the control plane",
		Example: "  barque agent --server https://10.0.0.1:6443 --token T",
		Args:    command.NoArgs,
	}
	f := addRoleFlags(cmd, roleAgent)
	withSettings(cmd, roleAgent)
	cmd.RunE = func(c *cobra.Command, _ []string) error {
		o, err := f.complete(c)
		if err != nil {
			return err
		}
		// The next process does not rejoin: that is done then, and the token may be used up.
		return runNode(c.Context(), &o, command.NewLogger(o.LogLevel), node.RunAgent, withoutRejoin(os.Args))
	}
	return cmd
}
