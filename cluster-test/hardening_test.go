package clustertest

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/clusterstatus/cis"
)

// unprotected are for nodes with the profile: the kernel's parameters are this machine's, which
// others use.
var unprotected = []string{"--protect-kernel-defaults=false"}

// benchmark judges the cluster.
func (c *Cluster) benchmark(t testing.TB) *cis.Report {
	t.Helper()
	r := c.BarqueResult(t.Context(), "check", "--profile", "cis", "--data-dir", t.TempDir(), "-o", "json")
	report := new(cis.Report)
	if err := json.Unmarshal([]byte(r.Out), report); err != nil {
		t.Fatalf("%v: %s", err, r.Out)
	}
	if failed := report.Failed(); (r.Error != nil) != (failed > 0) {
		t.Errorf("%d rows fail, and the command says %v", failed, r.Error)
	}
	if len(report.Rows) != len(cis.Rows()) {
		t.Errorf("%d rows of %d", len(report.Rows), len(cis.Rows()))
	}
	return report
}

// flagOf reports whether a server has a flag.
func (c *Cluster) flagOf(t testing.TB) func(string) bool {
	t.Helper()
	help := c.Barque(t, "server", "--help")
	return func(name string) bool { return strings.Contains(help, "--"+name+" ") }
}

// TestHardenedCluster: with the profile only the rows fail that docs/cis.md explains, the usual
// workloads run, and pods that would leave their bounds are refused.
func TestHardenedCluster(t *testing.T) {
	t.Parallel()
	images, err := testRegistry()
	if err != nil {
		t.Fatal(err)
	}
	c := Start(t,
		Options{Servers: 1, Agents: 1, Registry: images, NodeArgs: unprotected, ServerArgs: []string{"--profile=cis"}})
	s := NewSpace(t, c) // Healthy demands nodes without taints
	s.Run("workloads run", hardenedWorkloads)
	s.Run("pods are held to baseline", heldToBaseline)
	has := c.flagOf(t)
	s.Run("the benchmark", func(s *Space) {
		explained := map[string]string{}
		for _, row := range cis.Rows() {
			if why := row.Exception(has); why != "" {
				explained[row.ID] = why
			}
		}
		for _, row := range s.benchmark(s).Rows {
			switch why, known := explained[row.ID]; {
			case row.Status == cis.Unknown:
				s.Errorf("%s is unknown: %s", row.ID, row.Reason)
			case row.Status == cis.Fail && !known:
				s.Errorf("%s fails, and the page does not explain it: %s", row.ID, row.Reason)
			case row.Status != cis.Fail && known:
				s.Errorf("%s is %s (%s), but the page says that it fails: %s", row.ID, row.Status, row.Reason, why)
			}
		}
	})
	s.Run("a machine that joins gets the profile", func(s *Space) {
		// The agent of this cluster was not given the flag: it has the profile of the cluster.
		raw := read(s, s.DataDir("a1")+"/node.json")
		if !strings.Contains(string(raw), `"profile":"cis"`) && !strings.Contains(string(raw), `"profile": "cis"`) {
			s.Errorf("the record of a1 has no profile")
		}
		if limit := s.K("get", "--raw",
			"/api/v1/nodes/a1/proxy/configz"); !strings.Contains(limit, `"podPidsLimit":4096`) ||
			!strings.Contains(limit, `"seccompDefault":true`) {
			s.Errorf("the kubelet of a1 has not the profile's configuration: %s", limit)
		}
		if profile := s.K("get", "node", "a1", "-o", "jsonpath={.metadata.labels}"); !strings.Contains(profile,
			`"cis"`) {
			s.Errorf("the labels of a1 have no profile: %s", profile)
		}
	})
}

// TestPlainCluster: without the profile, no row is unknown, and each one that fails can be mended
// by a flag or command of this version, or is explained.
func TestPlainCluster(t *testing.T) {
	t.Parallel()
	c := Start(t, Options{Servers: 1})
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	has, rows := c.flagOf(t), map[string]cis.Row{}
	for _, row := range cis.Rows() {
		rows[row.ID] = row
	}
	for _, result := range c.benchmark(t).Rows {
		row := rows[result.ID]
		mended := result.Mend != "" && !strings.Contains(result.Mend, "this version has no")
		if result.Status == cis.Unknown || result.Status == cis.Fail && !mended && row.Exception(has) == "" {
			t.Errorf("%s: %s (%s), mended by %q", result.ID, result.Status, result.Reason, result.Mend)
		}
	}
}

// TestServersWithOtherFlags: a server that admits what the others refuse fails the benchmark,
// whichever server is asked for the objects, and the status says that a flag differs.
func TestServersWithOtherFlags(t *testing.T) {
	t.Parallel()
	const flag = "--pod-security-default"
	c := Start(t, Options{Servers: 3, ServerArgs: []string{flag + "=baseline"}})
	Eventually(t, deadline, "a whole cluster", c.Healthy)
	row := func(id string) cis.Result {
		rows := c.benchmark(t).Rows
		return rows[slices.IndexFunc(rows, func(r cis.Result) bool { return r.ID == id })]
	}
	if r := row("5.2.2"); r.Status != cis.Pass {
		t.Errorf("alike: %+v", r)
	}
	c.serverArgs(t, nil)
	c.Dev(t, "kill", "s3")
	if err := c.StartNode(t.Context(), "s3"); err != nil {
		t.Fatal(err)
	}
	Eventually(t, deadline, "a whole cluster, with s3 without the flag", c.Healthy)
	Eventually(t, deadline, "a warning of the flag", func(ctx context.Context) error {
		status, err := c.Status(ctx)
		if err != nil {
			return err
		}
		for _, w := range status.Warnings {
			if strings.HasPrefix(w.Text, flag+" differs between servers: s1, s2 | s3 (without it)") {
				return nil
			}
		}
		return fmt.Errorf("%+v", status.Warnings)
	})
	if r := row("5.2.2"); r.Status != cis.Fail || !strings.HasPrefix(r.Reason, "s3: admitted in ") {
		t.Errorf("with s3: %+v", r)
	}
}

// hardenedWorkloads runs the kinds of the README: a Deployment behind a Service by its name, a
// StatefulSet with a claim, and an autoscaler.
func hardenedWorkloads(s *Space) {
	s.K("apply", "-f", examples+"hello.yaml")
	s.K("apply", "-f", examples+"database.yaml")
	s.K("apply", "-f", examples+"hpa.yaml")
	s.K("rollout", "status", "deployment/hello", "--timeout=120s")
	s.K("rollout", "status", "deployment/busy", "--timeout=120s")
	for _, set := range strings.Fields(s.K("get", "statefulsets", "-o", "name")) {
		s.K("rollout", "status", set, "--timeout=120s")
	}
	if claims := s.K("get", "persistentvolumeclaims", "-o",
		"jsonpath={.items[*].status.phase}"); !strings.Contains(claims, "Bound") {
		s.Errorf("claims: %q", claims)
	}
	Eventually(s, deadline, "an autoscaler that knows the load", func(ctx context.Context) error {
		h, err := s.Client.AutoscalingV2().HorizontalPodAutoscalers(s.Namespace).Get(ctx, "busy", metav1.GetOptions{})
		if err == nil &&
			(len(h.Status.CurrentMetrics) == 0 || h.Status.CurrentMetrics[0].Resource == nil ||
				h.Status.CurrentMetrics[0].Resource.Current.AverageUtilization == nil) {
			err = errors.New("it has no metrics")
		}
		return err
	})
	for _, p := range s.Pods("app=hello") {
		if p.Spec.NodeName != "a1" {
			s.Errorf("%s is on %s, a server", p.Name, p.Spec.NodeName)
		}
	}
}

// heldToBaseline: the standard is enforced for namespaces without labels, by every way to a pod.
func heldToBaseline(s *Space) {
	for name, change := range map[string]func(*corev1.PodSpec){
		"privileged": func(p *corev1.PodSpec) {
			p.Containers[0].SecurityContext = &corev1.SecurityContext{Privileged: ptr.To(true)}
		},
		"host network": func(p *corev1.PodSpec) { p.HostNetwork = true },
		"host path": func(p *corev1.PodSpec) {
			p.Volumes = []corev1.Volume{
				{Name: "v",
					VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: "/var/lib/barque"}}}}
		},
	} {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"},
			Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "barque.local/hello:1"}}}}
		change(&pod.Spec)
		if _, err := s.Client.CoreV1().Pods(s.Namespace).Create(s.Context(), pod,
			metav1.CreateOptions{}); !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "PodSecurity") {
			s.Errorf("%s: %v", name, err)
		}
		pod.Namespace = "kube-system"
		if _, err := s.Client.CoreV1().Pods("kube-system").Create(s.Context(), pod,
			metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
			s.Errorf("%s in kube-system: %v", name, err)
		}
	}
	node, err := s.Client.CoreV1().Nodes().Get(s.Context(), "s1", metav1.GetOptions{})
	if err != nil || !slices.ContainsFunc(node.Spec.Taints, func(t corev1.Taint) bool {
		return t.Key == "node-role.kubernetes.io/control-plane" && t.Effect == corev1.TaintEffectNoSchedule
	}) {
		s.Errorf("the server has the taints %v (%v)", fmt.Sprint(node.Spec.Taints), err)
	}
}
