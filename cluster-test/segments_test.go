package clustertest

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/machines"
	"github.com/barque/barque/internal/needs"
)

// site is a layer-2 network with a server and an agent.
type site struct {
	segment       *machines.Segment
	server, agent *machines.Machine
}

// sites are the cluster of TestThreeNetworks.
type sites struct {
	*drill
	all []site
}

// threeNetworks has a web server on each node, and a client of it on each.
const threeNetworks = `
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: web}
spec:
  selector: {matchLabels: {app: web}}
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: hello, image: "barque.local/hello:1", ports: [{containerPort: 8080}]}]}
---
apiVersion: v1
kind: Service
metadata: {name: web}
spec: {selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: client}
spec:
  selector: {matchLabels: {app: client}}
  template:
    metadata: {labels: {app: client}}
    spec:
      terminationGracePeriodSeconds: 1
      containers: [{name: busybox, image: "docker.io/library/busybox:1.36", imagePullPolicy: Never, command: [sh, -c, "echo begun; exec sleep 1000000"]}]
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: closed}
spec:
  replicas: 1
  selector: {matchLabels: {app: closed}}
  template:
    metadata: {labels: {app: closed}}
    spec: {containers: [{name: hello, image: "barque.local/hello:1"}]}
---
apiVersion: v1
kind: Service
metadata: {name: closed}
spec: {selector: {app: closed}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: closed}}, policyTypes: [Ingress], ingress: [{from: [{podSelector: {matchLabels: {may: enter}}}]}]}
`

// Three servers and three agents are in three layer-2 networks, with routers between. Pods,
// Services, names, policies, logs and exec work between all of them, and between all others while
// a server or a router is away.
func TestThreeNetworks(t *testing.T) {
	needs.AllTests(t)
	t.Parallel()
	d := &sites{drill: newDrill(t)}
	flags := strings.Join(fastTimes, " ") + " --snapshot-unsealed"
	for i := 1; i <= 3; i++ {
		segment, err := d.lab.NewSegment(netip.MustParsePrefix(fmt.Sprintf("192.168.%d.254/24", i)))
		if err != nil {
			t.Fatal(err)
		}
		s := site{segment: segment}
		for _, m := range []struct {
			into  **machines.Machine
			name  string
			last  int
			flags string
		}{{&s.server, "s", 1, flags}, {&s.agent, "a", 21, ""}} {
			made, err := segment.NewMachine(fmt.Sprint(m.name, i),
				netip.MustParsePrefix(fmt.Sprintf("192.168.%d.%d/24", i, m.last)), 0)
			if err != nil {
				t.Fatal(err)
			}
			*m.into, d.flags[made.Name] = made, m.flags+" --cgroup-root "+made.CgroupRoot()
		}
		d.all = append(d.all, s)
	}
	d.stage("begin", d.begin)
	everything := d.machinesBut()
	d.stage("all reach all", func() { d.works(everything) })
	for i, s := range d.all {
		d.stage(fmt.Sprintf("server s%d is off", i+1), func() {
			d.must(s.server.Off())
			d.works(d.machinesBut(s.server))
		})
		d.stage(fmt.Sprintf("server s%d is on again", i+1), func() {
			d.must(s.server.On())
			d.start(s.server, "barque server")
			d.ready(s.server)
			d.works(everything)
		})
		d.stage(fmt.Sprintf("router %d is off", i+1), func() {
			d.must(s.segment.LoseRouter())
			d.works(d.machinesBut(s.server, s.agent))
		})
		d.stage(fmt.Sprintf("router %d is on again", i+1), func() {
			d.must(s.segment.ReturnRouter())
			d.works(everything)
		})
	}
}

func (d *sites) begin() {
	first := d.all[0].server
	d.start(first, "barque server")
	d.ready(first)
	join := " https://192.168.1.1:6443 --token-file /etc/barque/token"
	d.give(d.shell(first, "barque token create --role server --uses 2"), d.all[1].server, d.all[2].server)
	d.give(d.shell(first, "barque token create"), d.all[0].agent, d.all[1].agent, d.all[2].agent)
	for _, s := range d.all {
		if s.server != first {
			d.start(s.server, "barque server --join"+join)
		}
		d.start(s.agent, "barque agent --server"+join)
	}
	for _, s := range d.all {
		d.ready(s.server)
	}
	d.whole(d.all[0].server, d.all[1].server, d.all[2].server)
	d.giveBusybox()
	r := d.runWith(first, threeNetworks, "barque kubectl apply -f -")
	if r.Error != nil {
		d.Fatal(r.Error)
	}
}

// giveBusybox brings the clients' image to all machines: they reach no registry.
func (d *sites) giveBusybox() {
	d.Helper()
	all, err := images.Build(d.Context())
	if err != nil {
		d.Fatal(err)
	}
	tag, err := name.NewTag(images.Busybox)
	if err != nil {
		d.Fatal(err)
	}
	for _, s := range d.all {
		for _, m := range []*machines.Machine{s.server, s.agent} {
			if err := tarball.WriteToFile(filepath.Join(m.Path(machines.Home), "busybox.tar"), tag,
				all[tag]); err != nil {
				d.Fatal(err)
			}
			d.insist(m, "barque image import busybox.tar") // the runtime of an agent may not be there yet
		}
	}
}

// runWith is try with an input.
func (d *sites) runWith(m *machines.Machine, stdin, command string) machines.Result {
	ctx, cancel := context.WithTimeout(d.Context(), commandTimeout)
	defer cancel()
	return m.Run(ctx, stdin, command)
}

// machinesBut returns all machines but some, the servers first.
func (d *sites) machinesBut(some ...*machines.Machine) []*machines.Machine {
	var servers, agents []*machines.Machine
	for _, s := range d.all {
		if !slices.Contains(some, s.server) {
			servers = append(servers, s.server)
		}
		if !slices.Contains(some, s.agent) {
			agents = append(agents, s.agent)
		}
	}
	return append(servers, agents...)
}

// works waits until everything works between the nodes on these machines. It asks the first one.
func (d *sites) works(between []*machines.Machine) {
	d.Helper()
	at, nodes := between[0], map[string]bool{}
	for _, m := range between {
		nodes[m.Name] = true
	}
	var clients, servers []corev1.Pod
	Eventually(d, 2*deadline, "ready pods on all nodes that are there", func(ctx context.Context) (err error) {
		for label, into := range map[string]*[]corev1.Pod{"client": &clients, "web": &servers} {
			if *into, err = d.podsOf(ctx, at, label, nodes); err != nil {
				return err
			}
		}
		return nil
	})
	for _, client := range clients {
		exec := func(command string) machines.Result {
			return d.try(at, "barque kubectl exec "+client.Name+" -- "+command)
		}
		for _, server := range servers {
			Eventually(d, 2*deadline,
				fmt.Sprintf("an answer of %s on %s to %s", server.Name, server.Spec.NodeName, client.Spec.NodeName),
				func(context.Context) error {
					return says(exec(wgetOnce+"http://"+server.Status.PodIP+":8080/"), "Hello from "+server.Name)
				})
		}
		Eventually(d, 2*deadline, "the Service by its name, on "+client.Spec.NodeName, func(context.Context) error {
			return says(exec(wgetOnce+"http://web/"), "Hello from web-")
		})
		Eventually(d, 2*deadline, "the log of "+client.Name, func(context.Context) error {
			return says(d.try(at, "barque kubectl logs "+client.Name), "begun")
		})
	}
	d.policy(at, clients)
}

// policy asks a Service that is closed to all pods without a label.
func (d *sites) policy(at *machines.Machine, clients []corev1.Pod) {
	d.Helper()
	ask := func(client corev1.Pod) machines.Result {
		return d.try(at, "barque kubectl exec "+client.Name+" -- "+wgetOnce+"http://closed/")
	}
	guest := clients[len(clients)-1]
	label := func(text string) {
		d.Helper()
		d.insist(at, "barque kubectl label pod "+guest.Name+" "+text)
	}
	label("may=enter --overwrite")
	Eventually(d, 2*deadline, "an answer to a client that may enter",
		func(context.Context) error { return says(ask(guest), "Hello from closed-") })
	for _, client := range clients[:len(clients)-1] {
		Eventually(d, 2*deadline, "silence for "+client.Name, func(context.Context) error {
			r := ask(client)
			if r.Error == nil {
				d.Fatalf("%s may not enter, and gets %q", client.Name, r.Out)
			}
			if !strings.Contains(r.Err, "exit code 143") {
				return r.Error // not ended by timeout: exec itself failed
			}
			return nil
		})
	}
	label("may-")
	Eventually(d, 2*deadline, "silence for a client that may not enter any more", func(context.Context) error {
		if r := ask(guest); r.Error == nil {
			return errors.New("it is answered: " + r.Out)
		}
		return nil
	})
}

// says is an error unless a command has said the text.
func says(r machines.Result, text string) error {
	if r.Error == nil && !strings.Contains(r.Out, text) {
		return fmt.Errorf("it says %q, want %q", r.Out, text)
	}
	return r.Error
}

// podsOf returns the ready pods of a DaemonSet on the nodes; an error as long as they are not
// there.
func (d *sites) podsOf(
	ctx context.Context, at *machines.Machine, app string, nodes map[string]bool,
) ([]corev1.Pod, error) {
	list, err := d.api(at).CoreV1().Pods("default").List(ctx, metav1.ListOptions{LabelSelector: "app=" + app})
	if err != nil {
		return nil, err
	}
	var found []corev1.Pod
	for _, pod := range list.Items {
		if nodes[pod.Spec.NodeName] && Ready(&pod) {
			found = append(found, pod)
		}
	}
	if len(found) != len(nodes) {
		return nil, fmt.Errorf("%d of %d pods of %s are ready", len(found), len(nodes), app)
	}
	return found, nil
}
