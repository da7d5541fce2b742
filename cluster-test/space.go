package clustertest

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/barque/barque/internal/await"
)

// Space is a namespace of a cluster in which one test works.
type Space struct {
	testing.TB
	*Cluster
	Namespace string
}

// dumps bounds the dumps of a run: the first failures show all that there is to see.
var dumps atomic.Int32

// NewSpace makes a namespace that goes when the test ends.
func NewSpace(t testing.TB, c *Cluster) *Space {
	t.Helper()
	name := strings.ToLower(strings.NewReplacer("/", "-", "_", "-", ",", "-").Replace(t.Name()))
	name = strings.Trim(name[:min(len(name), 55)], "-")
	s := &Space{TB: t, Cluster: c, Namespace: name}
	c.Kubectl(t, "create", "namespace", name)
	t.Cleanup(func() {
		if t.Failed() && dumps.Add(1) <= 3 {
			c.Dump(t.Output())
		}
		err := Poll(context.Background(), time.Minute, func(ctx context.Context) error {
			return c.KubectlResult(ctx, "", "delete", "namespace", name, "--wait=false", "--ignore-not-found").Error
		})
		if err != nil {
			t.Errorf("remove the test's namespace: %v", err)
		}
	})
	// The admission of pods needs it; users run kubectl at once in new namespaces.
	Eventually(t, time.Minute, "the namespace's default service account", func(ctx context.Context) error {
		_, err := c.Client.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
	return s
}

// Run runs a part of the test as a subtest in the same namespace.
func (s *Space) Run(name string, part func(*Space)) {
	s.TB.(*testing.T).Run(name, func(t *testing.T) {
		part(&Space{TB: t, Cluster: s.Cluster, Namespace: s.Namespace})
	})
}

// K runs kubectl in the namespace; it must succeed.
func (s *Space) K(args ...string) string {
	s.Helper()
	return s.done(s, args, func() Result { return s.KResult(args...) })
}

// KResult runs kubectl in the namespace.
func (s *Space) KResult(args ...string) Result {
	return s.KubectlResult(s.Context(), "", append([]string{"-n", s.Namespace}, args...)...)
}

// Apply applies a manifest.
func (s *Space) Apply(manifest string) string {
	s.Helper()
	return s.done(s, nil, func() Result { return s.ApplyResult(manifest) })
}

// ApplyResult applies a manifest that may be refused.
func (s *Space) ApplyResult(manifest string, args ...string) Result {
	return s.KubectlResult(s.Context(), manifest, append([]string{"-n", s.Namespace, "apply", "-f", "-"}, args...)...)
}

// Pod reads a pod.
func (s *Space) Pod(name string) *corev1.Pod {
	s.Helper()
	pod, err := s.Client.CoreV1().Pods(s.Namespace).Get(s.Context(), name, metav1.GetOptions{})
	if err != nil {
		s.Fatal(err)
	}
	return pod
}

// Pods lists the pods with the label that are not on their way out.
func (s *Space) Pods(selector string) []corev1.Pod {
	s.Helper()
	list, err := s.Client.CoreV1().Pods(s.Namespace).List(s.Context(), metav1.ListOptions{LabelSelector: selector})
	if err != nil {
		s.Fatal(err)
	}
	var out []corev1.Pod
	for _, p := range list.Items {
		if p.DeletionTimestamp == nil {
			out = append(out, p)
		}
	}
	return out
}

// WaitPod waits for a condition of a pod and returns the pod that meets it.
func (s *Space) WaitPod(name string, limit time.Duration, what string, ok func(*corev1.Pod) bool) *corev1.Pod {
	s.Helper()
	var pod *corev1.Pod
	Eventually(s, limit, fmt.Sprintf("pod %s: %s", name, what), func(ctx context.Context) (err error) {
		if pod, err = s.Client.CoreV1().Pods(s.Namespace).Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		if !ok(pod) {
			status, _ := json.Marshal(pod.Status)
			return fmt.Errorf("its status is %s", status)
		}
		return nil
	})
	return pod
}

// WaitReady waits until a pod is ready.
func (s *Space) WaitReady(name string) *corev1.Pod {
	s.Helper()
	return s.WaitPod(name, await.Hang, "ready", Ready)
}

// Ready reports whether the pod's Ready condition is true.
func Ready(pod *corev1.Pod) bool {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// WaitEvent waits for an event of the object with the reason, whose message has the text in it.
func (s *Space) WaitEvent(object, reason, text string) {
	s.Helper()
	Eventually(s, await.Hang, fmt.Sprintf("event %s of %s", reason, object), func(ctx context.Context) error {
		events, err := s.Client.CoreV1().Events(s.Namespace).List(ctx,
			metav1.ListOptions{FieldSelector: "involvedObject.name=" + object})
		if err != nil {
			return err
		}
		var seen []string
		for _, e := range events.Items {
			if e.Reason == reason && strings.Contains(e.Message, text) {
				return nil
			}
			seen = append(seen, e.Reason+": "+e.Message)
		}
		return fmt.Errorf("it has %q", seen)
	})
}
