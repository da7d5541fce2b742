package clustertest

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/barque/barque/internal/needs"
)

// familiesService selects the pods of `hello`, in each family that the cluster has.
const familiesService = `
apiVersion: v1
kind: Service
metadata: {name: spread}
spec: {type: NodePort, ipFamilyPolicy: PreferDualStack, selector: {app: spread}, ports: [{port: 80, targetPort: 8080}]}
`

// wgetOnce asks from a pod. wget -T ends with SIGSEGV in Debian's busybox 1.35.0-4+deb12u1.
const wgetOnce = "timeout 3 wget -qO- " // brief: one try of several

// Clusters with IPv6, alone and beside IPv4, do what clusters with IPv4 do. Servers and agents
// join, and images come. Pods have an address of each family. They are reached at it, by their
// Service, by its name and by node ports.
func TestIPFamilies(t *testing.T) {
	needs.AllTests(t)
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	for _, families := range []string{"ipv6", "ipv4,ipv6"} {
		t.Run(families, func(t *testing.T) {
			c := Start(t, Options{Servers: 2, Agents: 1, Families: families, Registry: images})
			s := NewSpace(t, c)
			Eventually(t, deadline, "nodes without taints", c.Healthy)
			s.Apply(hello("spread", 3, "none"))
			s.Apply(familiesService)
			s.K("run", "client", "--image=busybox:1.36", "--command", "--", "sleep", "1000000")
			s.K("rollout", "status", "deployment/spread", "--timeout=2m")
			client := s.WaitPod("client", 2*deadline, "is ready", Ready)
			want := strings.Split(families, ",")
			checkFamilies(t, "the client", want, addressesOf(client))
			exec := func(what, command, answer string) {
				t.Helper()
				Eventually(t, deadline, what, func(context.Context) error {
					r := s.KResult(append([]string{"exec", "client", "--"}, strings.Fields(command)...)...)
					if r.Error == nil && !strings.Contains(r.Out, answer) {
						return fmt.Errorf("it says %q", r.Out)
					}
					return r.Error
				})
			}
			nodes := map[string]bool{}
			for _, pod := range s.Pods("app=spread") {
				nodes[pod.Spec.NodeName] = true
				checkFamilies(t, pod.Name, want, addressesOf(&pod))
				for _, address := range addressesOf(&pod) {
					exec("an answer of "+pod.Name+" at "+address,
						wgetOnce+"http://"+net.JoinHostPort(address, "8080")+"/", "Hello from "+pod.Name)
				}
			}
			if len(nodes) < 2 {
				t.Errorf("the pods are on %v", nodes)
			}
			service := strings.Fields(s.K("get", "service", "spread", "-o", "jsonpath={.spec.clusterIPs[*]}"))
			checkFamilies(t, "the Service", want, service)
			for _, address := range service {
				exec("the Service at "+address, wgetOnce+"http://"+net.JoinHostPort(address, "80")+"/",
					"Hello from spread-")
			}
			exec("the Service by its name", wgetOnce+"http://spread/", "Hello from spread-")
			exec("the API by its name", "nslookup kubernetes.default.svc.cluster.local", "Address")
			port := s.K("get", "service", "spread", "-o", "jsonpath={.spec.ports[0].nodePort}")
			for _, node := range []string{"s1", "a1"} {
				internal := strings.Fields(
					s.K("get", "node", node, "-o", `jsonpath={.status.addresses[?(@.type=="InternalIP")].address}`))
				checkFamilies(t, node, want, internal)
				for _, address := range internal {
					Eventually(t, deadline, "the node port at "+address, func(ctx context.Context) error {
						return get(ctx, "http://"+net.JoinHostPort(address, port)+"/", "Hello from spread-")
					})
				}
			}
			if out := s.K("logs", "deployment/spread"); !strings.Contains(out, "listening on") {
				t.Errorf("the log is %q", out)
			}
		})
	}
}

func addressesOf(pod *corev1.Pod) []string {
	var all []string
	for _, ip := range pod.Status.PodIPs {
		all = append(all, ip.IP)
	}
	return all
}

// checkFamilies fails unless the addresses are one of each family, in that order.
func checkFamilies(t *testing.T, what string, families, addresses []string) {
	t.Helper()
	var have []string
	for _, text := range addresses {
		addr, err := netip.ParseAddr(text)
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
		have = append(have, map[bool]string{false: "ipv4", true: "ipv6"}[addr.Is6()])
	}
	if strings.Join(have, ",") != strings.Join(families, ",") {
		t.Errorf("%s has the addresses %v, want %v", what, addresses, families)
	}
}
