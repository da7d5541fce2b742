package clients

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"strconv"
	"strings"
	"testing"
	"time"

	"helm.sh/helm/v4/pkg/action"
	chart "helm.sh/helm/v4/pkg/chart/v2"
	"helm.sh/helm/v4/pkg/chart/v2/loader"
	"helm.sh/helm/v4/pkg/kube"
	"helm.sh/helm/v4/pkg/release"
	releasev1 "helm.sh/helm/v4/pkg/release/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/cli-runtime/pkg/genericclioptions"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
)

// helm is Helm with its releases in one namespace.
type helm struct {
	*action.Configuration
	chart *chart.Chart
}

func newHelm(t testing.TB, s *server, namespace string) *helm {
	t.Helper()
	flags := genericclioptions.NewConfigFlags(true)
	flags.KubeConfig, flags.Namespace = &s.kubeconfig, &namespace
	cache := t.TempDir()
	flags.CacheDir = &cache
	c := action.NewConfiguration()
	c.SetLogger(slog.DiscardHandler)
	if err := c.Init(flags, namespace, "secret"); err != nil {
		t.Fatal(err)
	}
	return &helm{c, must(loader.Load("testdata/chart"))(t)}
}

func (h *helm) install(ctx context.Context, name, namespace string, values map[string]any) (release.Releaser, error) {
	i := action.NewInstall(h.Configuration)
	i.ReleaseName, i.Namespace, i.CreateNamespace, i.Timeout, i.WaitStrategy = name, namespace, true, hang,
		kube.HookOnlyStrategy
	return i.RunWithContext(ctx, h.chart, values)
}

func (h *helm) upgrade(
	ctx context.Context, name, namespace string, wait kube.WaitStrategy, values map[string]any,
) (release.Releaser, error) {
	u := action.NewUpgrade(h.Configuration)
	u.Namespace, u.Timeout, u.WaitStrategy = namespace, hang, wait
	return u.RunWithContext(ctx, name, h.chart, values)
}

func (h *helm) rollback(name string, version int) error {
	r := action.NewRollback(h.Configuration)
	r.Version, r.Timeout, r.WaitStrategy = version, hang, kube.HookOnlyStrategy
	return r.Run(name)
}

func (h *helm) uninstall(name string) error {
	u := action.NewUninstall(h.Configuration)
	u.Timeout, u.WaitStrategy, u.DeletionPropagation = hang, kube.StatusWatcherStrategy, "foreground"
	_, err := u.Run(name)
	return err
}

var farewells = schema.GroupVersionResource{Group: "helm.example.org", Version: "v1", Resource: "farewells"}

func TestHelm(t *testing.T) {
	const name, namespace = "web", "charts"
	s, ctx := startServer(t), t.Context()
	c := must(kubernetes.NewForConfig(s.config()))(t)
	d := must(dynamic.NewForConfig(s.config()))(t)
	h := newHelm(t, s, namespace)

	// holds checks the objects of a release.
	holds := func(t *testing.T, text string, replicas int32, port int32) {
		t.Helper()
		m := must(c.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{}))(t)
		dep := must(c.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{}))(t)
		svc := must(c.CoreV1().Services(namespace).Get(ctx, name, metav1.GetOptions{}))(t)
		f := must(d.Resource(farewells).Namespace(namespace).Get(ctx, name, metav1.GetOptions{}))(t)
		said, _, _ := unstructured.NestedString(f.Object, "spec", "text")
		if m.Data["text"] != text || said != text || *dep.Spec.Replicas != replicas || len(svc.Spec.Ports) != 1 ||
			svc.Spec.Ports[0].Port != port || svc.Spec.ClusterIP == "" {
			t.Errorf("text %q and %q, %d replicas, ports %+v at %q", m.Data["text"], said, *dep.Spec.Replicas,
				svc.Spec.Ports, svc.Spec.ClusterIP)
		}
		for _, o := range []metav1.Object{m, dep, svc, f} {
			if o.GetLabels()["app.kubernetes.io/managed-by"] != "Helm" ||
				o.GetAnnotations()["meta.helm.sh/release-name"] != name {
				t.Errorf("%s is not marked as Helm's: %v, %v", o.GetName(), o.GetLabels(), o.GetAnnotations())
			}
		}
	}
	status := func(t *testing.T, version int, want string) {
		t.Helper()
		r := must(action.NewStatus(h.Configuration).Run(name))(t).(*releasev1.Release)
		if r.Version != version || r.Info.Status.String() != want {
			t.Errorf("release %d is %s, want %d %s", r.Version, r.Info.Status, version, want)
		}
	}

	t.Run("DryRun", func(t *testing.T) {
		// The chart brings the kind of one of its objects along: a dry run on the server must miss
		// it, as with any server.
		if _, err := c.CoreV1().Namespaces().Create(ctx,
			&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: namespace}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		i := action.NewInstall(h.Configuration)
		i.ReleaseName, i.Namespace, i.DryRunStrategy, i.SkipCRDs, i.WaitStrategy = name, namespace, action.DryRunServer,
			true, kube.HookOnlyStrategy
		_, err := i.RunWithContext(ctx, h.chart, nil)
		if err == nil || !strings.Contains(err.Error(), `no matches for kind "Farewell"`) {
			t.Errorf("a dry run without the CRD: %v", err)
		}
		if list := must(c.CoreV1().Secrets(namespace).List(ctx, metav1.ListOptions{}))(t); len(list.Items) != 0 {
			t.Errorf("a dry run left %d secrets", len(list.Items))
		}
	})

	t.Run("Install", func(t *testing.T) {
		must(h.install(ctx, name, namespace, map[string]any{"text": "hello"}))(t)
		holds(t, "hello", 1, 80)
		status(t, 1, "deployed")
		hook := must(c.CoreV1().ConfigMaps(namespace).Get(ctx, name+"-before", metav1.GetOptions{}))(t)
		if hook.Data["revision"] != "1" {
			t.Errorf("the hook's ConfigMap has %v", hook.Data)
		}
		secret := must(c.CoreV1().Secrets(namespace).Get(ctx, "sh.helm.release.v1."+name+".v1", metav1.GetOptions{}))(t)
		if secret.Type != "helm.sh/release.v1" {
			t.Errorf("the release is in a secret of type %s", secret.Type)
		}
		if s := must(c.CoreV1().Secrets(namespace).Get(ctx, name, metav1.GetOptions{}))(t); string(
			s.Data["password"]) != "secret" {
			t.Errorf("stringData became %v", s.Data)
		}
		if _, err := h.install(ctx, name, namespace, nil); err == nil ||
			!strings.Contains(err.Error(), "still in use") {
			t.Errorf("installing it again: %v", err)
		}
		// The access that the chart gives counts.
		eventually(t, "the chart's account may do what it is to do", func(ctx context.Context) error {
			review, err := c.AuthorizationV1().LocalSubjectAccessReviews(namespace).Create(ctx,
				accessReview(namespace, name), metav1.CreateOptions{})
			if err == nil && !review.Status.Allowed {
				err = fmt.Errorf("%+v", review.Status)
			}
			return err
		})
	})

	t.Run("Upgrade", func(t *testing.T) {
		must(
			h.upgrade(ctx, name, namespace, kube.HookOnlyStrategy,
				map[string]any{"text": "good day", "replicas": 2, "port": 8080, "extra": true}))(t)
		holds(t, "good day", 2, 8080)
		status(t, 2, "deployed")
		must(c.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, name, metav1.GetOptions{}))(t)
		if hook := must(c.CoreV1().ConfigMaps(namespace).Get(ctx, name+"-before", metav1.GetOptions{}))(
			t); hook.Data["revision"] != "2" {
			t.Errorf("the hook's ConfigMap has %v", hook.Data)
		}
		// A request that the API refuses leaves the release failed.
		if _, err := h.upgrade(ctx, name, namespace, kube.HookOnlyStrategy,
			map[string]any{"text": "bad", "port": 70000}); err == nil ||
			!strings.Contains(err.Error(), "must be between 1 and 65535") {
			t.Errorf("a port that is none: %v", err)
		}
		status(t, 3, "failed")
	})

	t.Run("UpgradeWaits", func(t *testing.T) {
		must(
			h.upgrade(ctx, name, namespace, kube.StatusWatcherStrategy,
				map[string]any{"text": "quiet", "replicas": 0}))(t)
		holds(t, "quiet", 0, 80)
		status(t, 4, "deployed")
		if _, err := c.PolicyV1().PodDisruptionBudgets(namespace).Get(ctx, name,
			metav1.GetOptions{}); !apierrors.IsNotFound(err) {
			t.Errorf("what the new version of the chart has no more: %v", err)
		}
	})

	t.Run("Rollback", func(t *testing.T) {
		if err := h.rollback(name, 2); err != nil {
			t.Fatal(err)
		}
		holds(t, "good day", 2, 8080)
		status(t, 5, "deployed")
		all := must(action.NewHistory(h.Configuration).Run(name))(t)
		states := map[string]string{}
		for _, r := range all {
			v := r.(*releasev1.Release)
			states[strconv.Itoa(v.Version)] = v.Info.Status.String()
		}
		if want := map[string]string{"1": "superseded", "2": "superseded", "3": "failed", "4": "superseded",
			"5": "deployed"}; !maps.Equal(states, want) {
			t.Errorf("history %v, want %v", states, want)
		}
		list := must(action.NewList(h.Configuration).Run())(t)
		if len(list) != 1 {
			t.Errorf("%d releases are listed", len(list))
		}
	})

	t.Run("JobHook", func(t *testing.T) { testJobHook(t, s, c) })

	t.Run("Uninstall", func(t *testing.T) {
		if err := h.uninstall(name); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the objects of the release are gone", func(ctx context.Context) error {
			_, noMap := c.CoreV1().ConfigMaps(namespace).Get(ctx, name, metav1.GetOptions{})
			_, noDep := c.AppsV1().Deployments(namespace).Get(ctx, name, metav1.GetOptions{})
			_, noFarewell := d.Resource(farewells).Namespace(namespace).Get(ctx, name, metav1.GetOptions{})
			_, noRole := c.RbacV1().ClusterRoles().Get(ctx, name+"-"+namespace, metav1.GetOptions{})
			_, noHook := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Get(ctx,
				name+".helm.example.org", metav1.GetOptions{})
			for _, err := range []error{noMap, noDep, noFarewell, noRole, noHook} {
				if !apierrors.IsNotFound(err) {
					return fmt.Errorf("%v", errors.Join(noMap, noDep, noFarewell, noRole, noHook))
				}
			}
			return nil
		})
		// The CRD stays, as Helm has it; so does the hook's object.
		must(d.Resource(farewells).Namespace(namespace).List(ctx, metav1.ListOptions{}))(t)
		must(c.CoreV1().ConfigMaps(namespace).Get(ctx, name+"-before", metav1.GetOptions{}))(t)
		pods := must(c.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{}))(t)
		if len(pods.Items) != 0 {
			t.Errorf("%d pods are left of a foreground delete", len(pods.Items))
		}
	})
}

// testJobHook installs a release whose hook is a Job. There is no node that could run it: the test
// reports that it is complete.
func testJobHook(t *testing.T, s *server, c kubernetes.Interface) {
	const name, namespace = "jobs", "jobs"
	ctx, cancel := context.WithTimeout(t.Context(), hang)
	defer cancel()
	h := newHelm(t, s, namespace)
	installed := make(chan error, 1)
	go func() { // ends when the install does, which the context bounds
		_, err := h.install(ctx, name, namespace, map[string]any{"job": true})
		installed <- err
	}()
	var seen *batchv1.Job
	for {
		select {
		case err := <-installed:
			if err != nil {
				t.Fatal(err)
			}
			if seen == nil {
				t.Fatal("the release was installed without its hook")
			}
			if seen.Annotations["helm.sh/hook"] != "post-install" || seen.Spec.Selector == nil ||
				*seen.Spec.BackoffLimit != 6 {
				t.Errorf("the hook was stored as %+v", seen)
			}
			eventually(t, "the hook that succeeded is gone", func(ctx context.Context) error {
				_, err := c.BatchV1().Jobs(namespace).Get(ctx, seen.Name, metav1.GetOptions{})
				if !apierrors.IsNotFound(err) {
					return fmt.Errorf("it is still there: %v", err)
				}
				return nil
			})
			if err := h.uninstall(name); err != nil {
				t.Error(err)
			}
			return
		case <-time.After(100 * time.Millisecond): // brief: the interval of a poll
		}
		job, err := c.BatchV1().Jobs(namespace).Get(ctx, name+"-migrate", metav1.GetOptions{})
		if err != nil {
			continue // not yet, or not any more
		}
		seen = job
		now := metav1.Now()
		job.Status = batchv1.JobStatus{StartTime: &job.CreationTimestamp, CompletionTime: &now, Succeeded: 1}
		for _, kind := range []batchv1.JobConditionType{batchv1.JobSuccessCriteriaMet, batchv1.JobComplete} {
			job.Status.Conditions = append(job.Status.Conditions,
				batchv1.JobCondition{Type: kind, Status: corev1.ConditionTrue, LastProbeTime: now,
					LastTransitionTime: now, Reason: "CompletionsReached"})
		}
		if _, err := c.BatchV1().Jobs(namespace).UpdateStatus(ctx, job, metav1.UpdateOptions{}); err != nil &&
			!apierrors.IsConflict(err) && !apierrors.IsNotFound(err) && !apierrors.IsInvalid(err) {
			t.Error(err)
		}
	}
}
