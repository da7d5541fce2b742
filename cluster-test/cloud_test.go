package clustertest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"

	"github.com/barque/barque/cluster-test/fakeaws"
	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/netspace"
	"github.com/barque/barque/cluster-test/registry"
	"github.com/barque/barque/internal/needs"
)

// clouded is a cluster whose nodes are instances of a cloud.
type clouded struct {
	*Space
	cloud *fakeaws.Cloud
	ids   map[string]string // of the instances, by node
}

const (
	// cloudAt is the address of the cloud's API in each node's network namespace.
	cloudAt    = "127.0.0.1:5080"
	cloudImage = "registry.k8s.io/provider-aws/cloud-controller-manager"

	taintUninitialized = "node.cloudprovider.kubernetes.io/uninitialized"
	taintShutdown      = "node.cloudprovider.kubernetes.io/shutdown"
)

// TestACloudControllerManager runs AWS' cloud-controller-manager, as its authors ship it, against a
// fake of the cloud. Nodes get their addresses, and Services their load balancers, also while the
// cluster's leader is killed. Nodes whose instance is gone are deleted.
func TestACloudControllerManager(t *testing.T) {
	programs := os.Getenv("CLOUD_PROGRAMS")
	if programs == "" {
		needs.Missing(t, "a cloud-controller-manager in CLOUD_PROGRAMS (run `make test-cloud`)",
			"nodes and Services in a cloud")
	}
	cloud := fakeaws.New()
	c := Start(t, Options{Servers: 3, Agents: 1, Registry: cloudRegistry(t, programs),
		NodeArgs:   []string{"--cloud-provider=external"},
		ServerArgs: []string{"--node-monitor-period=500ms", "--node-monitor-grace-period=10s"}})
	serveCloud(t, c, cloud)
	d := clouded{NewSpace(t, c), cloud, map[string]string{}}
	t.Cleanup(func() {
		for _, request := range cloud.Unknown() {
			t.Error("the cloud could not answer: ", request)
		}
	})
	d.part("uninitialized", clouded.uninitialized)
	d.install(filepath.Join(programs, "manifests"))
	d.part("initialized", clouded.initialized)
	d.part("restart", clouded.restart)
	d.part("address", clouded.otherAddress)
	d.part("service", clouded.service)
	d.part("local", clouded.local)
	d.part("leader", clouded.leader)
	d.part("stopped", clouded.stopped)
	d.part("terminated", clouded.terminated)
	d.part("delete", clouded.remove)
}

func (d clouded) part(name string, do func(clouded)) {
	d.Run(name, func(s *Space) {
		do(clouded{s, d.cloud, d.ids})
	})
	if d.Failed() { // later parts build upon it
		d.FailNow()
	}
}

// cloudRegistry has the image of the cloud-controller-manager, as its Dockerfile makes it.
func cloudRegistry(t *testing.T, programs string) *registry.Registry {
	t.Helper()
	image, err := images.Foreign{
		Files:  map[string]string{"bin/aws-cloud-controller-manager": filepath.Join(programs, "aws-cloud-controller-manager")},
		Config: v1.Config{Entrypoint: []string{"/bin/aws-cloud-controller-manager"}},
	}.Make(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	tag, err := name.NewTag(cloudImage + ":test")
	if err != nil {
		t.Fatal(err)
	}
	server, err := registry.New(t.Context(), map[name.Tag]v1.Image{tag: image})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after the cluster
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	})
	return server
}

// serveCloud serves the cloud's API to all nodes until the test ends. The registry is served alike:
// a network namespace cannot go while a socket of the test is in it.
func serveCloud(t *testing.T, c *Cluster, cloud *fakeaws.Cloud) {
	t.Helper()
	server := &http.Server{Handler: cloud, ReadHeaderTimeout: 10 * time.Second}
	var serving sync.WaitGroup
	t.Cleanup(func() { // before the cluster
		if err := server.Close(); err != nil {
			t.Error(err)
		}
		serving.Wait()
	})
	for _, node := range c.Nodes() {
		listener, err := netspace.Listen(c.Netns(node), "tcp", cloudAt)
		if err != nil {
			t.Fatal(err)
		}
		// It ends when the server is closed, with an error that says that.
		serving.Go(func() { _ = server.Serve(listener) })
	}
}

// node returns the Node object.
func (d clouded) node(ctx context.Context, name string) (*corev1.Node, error) {
	return d.Client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
}

func tainted(node *corev1.Node, key string) bool {
	return slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool { return t.Key == key })
}

// uninitialized: new nodes have the taint that keeps pods away, and the address that the cloud's
// controller compares. Each gets an instance.
func (d clouded) uninitialized() {
	for n, name := range d.Nodes() {
		node, err := d.node(d.Context(), name)
		if err != nil {
			d.Fatal(err)
		}
		if !tainted(node, taintUninitialized) || node.Spec.ProviderID != "" {
			d.Errorf("node %s has the taints %v and the provider ID %q", name, node.Spec.Taints, node.Spec.ProviderID)
		}
		ip := node.Annotations["alpha.kubernetes.io/provided-node-ip"]
		if net.ParseIP(ip) == nil {
			d.Fatalf("node %s has the provided IP %q", name, ip)
		}
		d.ids[name] = fmt.Sprintf("i-%017x", n+1)
		d.cloud.Put(fakeaws.Instance{ID: d.ids[name], Name: name, Type: "t3.large", PrivateIP: ip,
			PublicIP: fmt.Sprintf("203.0.113.%d", n+1)})
	}
	d.K("create", "deployment", "web", "--image=barque.local/hello:1", "--replicas=2")
	Eventually(d, deadline, "pods that the taint keeps away", func(context.Context) error {
		pods := d.Pods("app=web")
		if len(pods) != 2 {
			return fmt.Errorf("there are %d pods", len(pods))
		}
		for _, pod := range pods {
			if pod.Spec.NodeName != "" {
				d.Fatalf("pod %s is on node %s", pod.Name, pod.Spec.NodeName)
			}
			if !slices.ContainsFunc(pod.Status.Conditions, func(c corev1.PodCondition) bool {
				return c.Type == corev1.PodScheduled && strings.Contains(c.Message, taintUninitialized)
			}) {
				return fmt.Errorf("pod %s: %+v", pod.Name, pod.Status.Conditions)
			}
		}
		return nil
	})
}

// cloudConfig is the configuration for a control plane without the cloud's metadata service.
// Services have their names in Amazon's SDK.
const cloudConfig = `[Global]
Region = ` + fakeaws.Region + `
VPC = ` + fakeaws.Network + `
SubnetID = ` + fakeaws.Subnet + `
KubernetesClusterID = ` + fakeaws.Cluster + `
[ServiceOverride "1"]
Service = EC2
Region = ` + fakeaws.Region + `
URL = http://` + cloudAt + `
SigningRegion = ` + fakeaws.Region + `
SigningName = ec2
[ServiceOverride "2"]
Service = "Elastic Load Balancing"
Region = ` + fakeaws.Region + `
URL = http://` + cloudAt + `
SigningRegion = ` + fakeaws.Region + `
SigningName = elasticloadbalancing
`

// cloudOverlay is what a user adds to the authors' manifests: the image, the configuration and the
// credentials. Nodes are compared with the cloud every few seconds instead of minutes.
const cloudOverlay = `
namespace: kube-system
resources: [base]
images: [{name: ` + cloudImage + `, newTag: test}]
secretGenerator:
- {name: aws, namespace: kube-system, files: [cloud.conf],
  literals: [AWS_ACCESS_KEY_ID=` + fakeaws.AccessKey + `, AWS_SECRET_ACCESS_KEY=test, AWS_EC2_METADATA_DISABLED=true]}
patches:
- target: {kind: DaemonSet, name: aws-cloud-controller-manager}
  patch: |
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --cloud-config=/etc/aws/cloud.conf}
    - {op: add, path: /spec/template/spec/containers/0/args/-, value: --node-status-update-frequency=5s}
    - {op: add, path: /spec/template/spec/containers/0/envFrom, value: [{secretRef: {name: aws}}]}
    - {op: add, path: /spec/template/spec/containers/0/volumeMounts, value: [{name: aws, mountPath: /etc/aws}]}
    - {op: add, path: /spec/template/spec/volumes, value: [{name: aws, secret: {secretName: aws}}]}
`

// install applies the authors' manifests with the overlay.
func (d clouded) install(manifests string) {
	d.Helper()
	dir := d.TempDir()
	if err := os.CopyFS(filepath.Join(dir, "base"), os.DirFS(manifests)); err != nil {
		d.Fatal(err)
	}
	for file, text := range map[string]string{"cloud.conf": cloudConfig, "kustomization.yaml": cloudOverlay} {
		if err := os.WriteFile(filepath.Join(dir, file), []byte(text), 0o600); err != nil {
			d.Fatal(err)
		}
	}
	d.Kubectl(d, "apply", "-k", dir)
	d.Kubectl(d, "-n", "kube-system", "rollout", "status", "daemonset/aws-cloud-controller-manager", "--timeout=110s")
}

// fits returns why the Node is not as its instance in the cloud.
func (d clouded) fits(ctx context.Context, name, publicIP string) error {
	node, err := d.node(ctx, name)
	if err != nil {
		return err
	}
	if tainted(node, taintUninitialized) || tainted(node, taintShutdown) {
		return fmt.Errorf("node %s has the taints %v", name, node.Spec.Taints)
	}
	if want := "aws:///" + fakeaws.Zone + "/" + d.ids[name]; node.Spec.ProviderID != want {
		return fmt.Errorf("node %s has the provider ID %q, want %q", name, node.Spec.ProviderID, want)
	}
	for label, want := range map[string]string{
		corev1.LabelTopologyZone: fakeaws.Zone, corev1.LabelTopologyRegion: fakeaws.Region,
		corev1.LabelInstanceTypeStable: "t3.large", "topology.k8s.aws/zone-id": fakeaws.ZoneID,
	} {
		if node.Labels[label] != want {
			return fmt.Errorf("node %s has the label %s=%s, want %s", name, label, node.Labels[label], want)
		}
	}
	want := []corev1.NodeAddress{
		{Type: corev1.NodeInternalIP, Address: node.Annotations["alpha.kubernetes.io/provided-node-ip"]},
		{Type: corev1.NodeExternalIP, Address: publicIP},
		{Type: corev1.NodeInternalDNS, Address: name}, {Type: corev1.NodeHostName, Address: name},
		{Type: corev1.NodeExternalDNS, Address: fakeaws.Instance{PublicIP: publicIP}.PublicName()},
	}
	if !slices.Equal(node.Status.Addresses, want) {
		return fmt.Errorf("node %s has the addresses %v, want %v", name, node.Status.Addresses, want)
	}
	return nil
}

func (d clouded) waitFits(name, publicIP string) {
	d.Helper()
	Eventually(d, 2*deadline, "a node as it is in the cloud", func(ctx context.Context) error {
		return d.fits(ctx, name, publicIP)
	})
}

func (d clouded) initialized() {
	for n, name := range d.Nodes() {
		d.waitFits(name, fmt.Sprintf("203.0.113.%d", n+1))
	}
	d.K("rollout", "status", "deployment/web", "--timeout=110s")
	for _, pod := range d.Pods("app=web") { // the API server finds the kubelet by the cloud's addresses
		d.K("logs", pod.Name)
	}
}

// externals follows a Node, and returns a function that ends that and returns the external
// addresses that it had meanwhile.
func (d clouded) externals(name string) func() []string {
	d.Helper()
	client, err := d.Watcher()
	if err != nil {
		d.Fatal(err)
	}
	node, err := d.node(d.Context(), name)
	if err != nil {
		d.Fatal(err)
	}
	watch, err := client.CoreV1().Nodes().Watch(d.Context(), metav1.ListOptions{
		FieldSelector:   fields.OneTermEqualSelector("metadata.name", name).String(),
		ResourceVersion: node.ResourceVersion})
	if err != nil {
		d.Fatal(err)
	}
	had := map[string]bool{external(node): true}
	var following sync.WaitGroup
	following.Go(func() { // ends when the watch is stopped
		for event := range watch.ResultChan() {
			if node, ok := event.Object.(*corev1.Node); ok {
				had[external(node)] = true
			}
		}
	})
	return func() []string {
		watch.Stop()
		following.Wait()
		return slices.Sorted(maps.Keys(had))
	}
}

func external(node *corev1.Node) string {
	for _, a := range node.Status.Addresses {
		if a.Type == corev1.NodeExternalIP {
			return a.Address
		}
	}
	return ""
}

// restart: a node keeps the cloud's addresses while its process is killed and starts anew.
func (d clouded) restart() {
	name := "a1"
	had := d.externals(name)
	if err := d.KillNodes(d.Context(), name); err != nil {
		d.Fatal(err)
	}
	d.WaitNode(d, name, corev1.ConditionUnknown, deadline)
	if err := d.StartNode(d.Context(), name); err != nil {
		d.Fatal(err)
	}
	d.WaitNode(d, name, corev1.ConditionTrue, deadline)
	if got := had(); !slices.Equal(got, []string{"203.0.113.4"}) {
		d.Errorf("node %s has had the external addresses %q", name, got)
	}
	d.waitFits(name, "203.0.113.4")
}

// otherAddress: a node follows when the cloud changes its public address.
func (d clouded) otherAddress() {
	name := "a1"
	node, err := d.node(d.Context(), name)
	if err != nil {
		d.Fatal(err)
	}
	had := d.externals(name)
	d.cloud.Put(fakeaws.Instance{ID: d.ids[name], Name: name, Type: "t3.large",
		PrivateIP: node.Annotations["alpha.kubernetes.io/provided-node-ip"], PublicIP: "203.0.113.44"})
	d.waitFits(name, "203.0.113.44")
	if got := had(); !slices.Equal(got, []string{"203.0.113.4", "203.0.113.44"}) {
		d.Errorf("node %s has had the external addresses %q", name, got)
	}
}

// balancer waits until the Service has the address of its one load balancer, and the load balancer
// has the nodes as its targets.
func (d clouded) balancer(service string, nodes ...string) (balancer fakeaws.Balancer, out *corev1.Service) {
	d.Helper()
	var targets []string
	for _, name := range nodes {
		targets = append(targets, d.ids[name])
	}
	slices.Sort(targets)
	Eventually(d, 2*deadline, "the load balancer of "+service, func(ctx context.Context) (err error) {
		if out, err = d.Client.CoreV1().Services(d.Namespace).Get(ctx, service, metav1.GetOptions{}); err != nil {
			return err
		}
		made := d.cloud.Balancers()[d.Namespace+"/"+service]
		if len(made) != 1 {
			return fmt.Errorf("the cloud has the load balancers %+v", made)
		}
		balancer = made[0]
		if in := out.Status.LoadBalancer.Ingress; len(in) != 1 || in[0].Hostname != balancer.DNSName || in[0].IP != "" {
			return fmt.Errorf("the Service has %+v, and its load balancer is %s", in, balancer.DNSName)
		}
		if !slices.Equal(balancer.Instances, targets) {
			return fmt.Errorf("the targets are %v, want %v", balancer.Instances, targets)
		}
		return nil
	})
	return balancer, out
}

// inService waits until exactly these nodes pass the load balancer's health check.
func (d clouded) inService(balancer fakeaws.Balancer, nodes ...string) {
	d.Helper()
	var want []string
	for _, name := range nodes {
		want = append(want, d.ids[name])
	}
	slices.Sort(want)
	Eventually(d, deadline, "the targets in service", func(ctx context.Context) error {
		ctx, cancel := TryOnce(ctx)
		defer cancel()
		got, err := d.cloud.InService(ctx, balancer)
		if err == nil && !slices.Equal(got, want) {
			err = fmt.Errorf("%v pass the check %s, want %v", got, balancer.Target, want)
		}
		return err
	})
}

// service: the load balancer of a Service has the nodes as targets, which pass its health check and
// lead to the pods, and the nodes let it in.
func (d clouded) service() {
	d.K("expose", "deployment", "web", "--type=LoadBalancer", "--port=80", "--target-port=8080")
	balancer, service := d.balancer("web", d.Nodes()...)
	port := fmt.Sprint(service.Spec.Ports[0].NodePort)
	want := fakeaws.Listener{Port: "80", Protocol: "TCP", InstancePort: port, InstanceProtocol: "TCP"}
	if !slices.Equal(balancer.Listeners, []fakeaws.Listener{want}) {
		d.Errorf("the load balancer has the listeners %+v, want %+v", balancer.Listeners, want)
	}
	if !slices.Contains(service.Finalizers, "service.kubernetes.io/load-balancer-cleanup") {
		d.Errorf("the Service has the finalizers %q", service.Finalizers)
	}
	if len(balancer.Groups) != 1 || !d.cloud.Admits(balancer.Groups[0]) {
		d.Errorf("the nodes do not let the groups %v of the load balancer in", balancer.Groups)
	}
	d.inService(balancer, d.Nodes()...)
	for _, name := range d.Nodes() {
		node, err := d.node(d.Context(), name)
		if err != nil {
			d.Fatal(err)
		}
		at := net.JoinHostPort(node.Status.Addresses[0].Address, port)
		Eventually(d, deadline, "the Service at "+name, func(ctx context.Context) error {
			return get(ctx, "http://"+at, "Hello from web-")
		})
	}
}

// local: with externalTrafficPolicy Local, the nodes with a ready pod pass the health check, and no
// others.
func (d clouded) local() {
	d.K("patch", "service", "web", "-p", `{"spec":{"externalTrafficPolicy":"Local"}}`)
	var balancer fakeaws.Balancer
	Eventually(d, 2*deadline, "the health check of the node's endpoints", func(context.Context) error {
		var service *corev1.Service
		balancer, service = d.balancer("web", d.Nodes()...)
		if want := fmt.Sprintf("HTTP:%d/healthz", service.Spec.HealthCheckNodePort); balancer.Target != want {
			return fmt.Errorf("the check is %s, want %s", balancer.Target, want)
		}
		return nil
	})
	var nodes []string
	for _, pod := range d.Pods("app=web") {
		if !slices.Contains(nodes, pod.Spec.NodeName) {
			nodes = append(nodes, pod.Spec.NodeName)
		}
	}
	d.inService(balancer, nodes...)
}

// leader: a Service gets one load balancer though the cluster's leader is killed meanwhile.
func (d clouded) leader() {
	leader := d.Leader(d)
	d.K("expose", "deployment", "web", "--name=second", "--type=LoadBalancer", "--port=81", "--target-port=8080")
	if err := d.KillNodes(d.Context(), leader); err != nil {
		d.Fatal(err)
	}
	Eventually(d, 2*deadline, "a load balancer", func(ctx context.Context) error {
		service, err := d.Client.CoreV1().Services(d.Namespace).Get(ctx, "second", metav1.GetOptions{})
		if err == nil && len(service.Status.LoadBalancer.Ingress) == 0 {
			err = fmt.Errorf("it is pending: %v", service.Status.Conditions)
		}
		return err
	})
	if err := d.StartNode(d.Context(), leader); err != nil {
		d.Fatal(err)
	}
	d.WaitNode(d, leader, corev1.ConditionTrue, deadline)
	d.balancer("second", d.Nodes()...)
	d.K("delete", "service", "second", "--timeout=110s")
	if left := d.cloud.Balancers()[d.Namespace+"/second"]; len(left) > 0 {
		d.Errorf("the cloud still has %+v", left)
	}
}

// stopped: a node whose instance is shut down stays, with a taint until it is there again.
func (d clouded) stopped() {
	name := "a1"
	if err := d.KillNodes(d.Context(), name); err != nil {
		d.Fatal(err)
	}
	d.cloud.SetState(d.ids[name], fakeaws.Stopped)
	Eventually(d, 2*deadline, "the taint of a machine that is shut down", func(ctx context.Context) error {
		node, err := d.node(ctx, name)
		if err == nil && !tainted(node, taintShutdown) {
			err = fmt.Errorf("the taints are %v", node.Spec.Taints)
		}
		return err
	})
	d.cloud.SetState(d.ids[name], fakeaws.Running)
	if err := d.StartNode(d.Context(), name); err != nil {
		d.Fatal(err)
	}
	d.waitFits(name, "203.0.113.44")
	d.WaitNode(d, name, corev1.ConditionTrue, deadline)
}

// terminated: a node whose instance is gone is deleted, and is no target any more. Its certificates
// end with its Node, so that a new instance of that name joins as any new machine does.
func (d clouded) terminated() {
	name := "a1"
	if err := d.KillNodes(d.Context(), name); err != nil {
		d.Fatal(err)
	}
	d.WaitNode(d, name, corev1.ConditionUnknown, deadline)
	d.cloud.SetState(d.ids[name], fakeaws.Terminated)
	Eventually(d, 2*deadline, "the end of the node", func(ctx context.Context) error {
		_, err := d.node(ctx, name)
		if apierrors.IsNotFound(err) {
			return nil
		}
		return errors.Join(err, fmt.Errorf("node %s is there", name))
	})
	d.balancer("web", "s1", "s2", "s3")
}

// remove: a Service that is deleted takes its load balancer along, and all that belongs to it.
func (d clouded) remove() {
	balancer, _ := d.balancer("web", "s1", "s2", "s3")
	d.K("delete", "service", "web", "--timeout=110s")
	if left := d.cloud.Balancers(); len(left) > 0 {
		d.Errorf("the cloud still has %+v", left)
	}
	if left := d.cloud.Groups(); !slices.Equal(left, []string{fakeaws.NodesGroup}) {
		d.Errorf("the cloud still has the security groups %v", left)
	}
	if d.cloud.Admits(balancer.Groups[0]) {
		d.Errorf("the nodes still let the group %s in", balancer.Groups[0])
	}
}
