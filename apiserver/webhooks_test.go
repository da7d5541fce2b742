package apiserver

import (
	"context"
	"crypto/tls"
	"crypto/x509/pkix"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	reviewv1 "k8s.io/api/admission/v1"
	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/apiserver/rbac"
)

// hooks is a server of webhooks beside the test. The first part of a path selects its behaviour,
// the second one is a name under which calls are counted.
type hooks struct {
	*httptest.Server
	mu    sync.Mutex
	calls map[string]int // by path and name of the object
}

func startHooks(t *testing.T, ca *testCA) *hooks {
	t.Helper()
	h := &hooks{calls: map[string]int{}}
	h.Server = httptest.NewUnstartedServer(http.HandlerFunc(h.serve))
	h.TLS = &tls.Config{
		Certificates: []tls.Certificate{*ca.issue(t, pkix.Name{CommonName: "hooks"}, net.IPv4(127, 0, 0, 1))}}
	h.Config.ErrorLog = log.New(io.Discard, "", 0) // it panics on purpose
	h.StartTLS()
	t.Cleanup(h.Close)
	return h
}

func (h *hooks) count(path, name string) int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.calls[path+" "+name]
}

func (h *hooks) serve(w http.ResponseWriter, r *http.Request) {
	var review reviewv1.AdmissionReview
	if err := json.NewDecoder(r.Body).Decode(&review); err != nil || review.Request == nil {
		http.Error(w, fmt.Sprintf("no review: %v", err), http.StatusBadRequest)
		return
	}
	h.mu.Lock()
	h.calls[r.URL.Path+" "+review.Request.Name]++
	nth := h.calls[r.URL.Path+" "+review.Request.Name]
	h.mu.Unlock()
	answer := &reviewv1.AdmissionResponse{UID: review.Request.UID, Allowed: true}
	patch := func(text string) {
		answer.Patch, answer.PatchType = []byte(text), ptr.To(reviewv1.PatchTypeJSONPatch)
	}
	switch does, _, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/"), "/"); does {
	case "allow":
	case "warn":
		answer.Warnings = []string{"mind the gap"}
	case "deny":
		answer.Allowed, answer.Result = false, &metav1.Status{Code: http.StatusTeapot, Message: "not today"}
	case "patch":
		patch(`[{"op": "add", "path": "/data", "value": {"patched": "yes"}}]`)
	case "count":
		patch(fmt.Sprintf(`[{"op": "add", "path": "/data/calls", "value": "%d"}]`, nth))
	case "unfit": // a patch that does not fit the object
		patch(`[{"op": "remove", "path": "/data/nothing"}]`)
	case "nopatch": // no patch at all
		patch(`{`)
	case "other-uid": // the answer to another question
		answer.UID = "another"
	case "garbage":
		_, _ = w.Write([]byte("<html>"))
		return
	case "broken":
		http.Error(w, "broken", http.StatusInternalServerError)
		return
	case "hang":
		<-r.Context().Done()
		return
	case "panic":
		panic(http.ErrAbortHandler)
	}
	review.Response, review.Request = answer, nil
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(review)
}

// hook declares a webhook on config maps with a label of the case.
func (h *hooks) hook(
	ca *testCA, path, label string, change func(*admissionv1.MutatingWebhook),
) admissionv1.MutatingWebhook {
	hook := admissionv1.MutatingWebhook{
		Name:         strings.ReplaceAll(strings.Trim(path, "/"), "/", ".") + ".example.com",
		ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To(h.URL + path), CABundle: ca.pem},
		Rules: []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule: admissionv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"},
				Resources: []string{"configmaps"}},
		}},
		ObjectSelector:          &metav1.LabelSelector{MatchLabels: map[string]string{"case": label}},
		SideEffects:             ptr.To(admissionv1.SideEffectClassNone),
		AdmissionReviewVersions: []string{"v1"},
	}
	if change != nil {
		change(&hook)
	}
	return hook
}

func validating(h admissionv1.MutatingWebhook) admissionv1.ValidatingWebhook {
	return admissionv1.ValidatingWebhook{
		Name: h.Name, ClientConfig: h.ClientConfig, Rules: h.Rules, ObjectSelector: h.ObjectSelector,
		NamespaceSelector: h.NamespaceSelector,
		SideEffects:       h.SideEffects, AdmissionReviewVersions: h.AdmissionReviewVersions,
		FailurePolicy:  h.FailurePolicy,
		TimeoutSeconds: h.TimeoutSeconds, MatchConditions: h.MatchConditions, MatchPolicy: h.MatchPolicy,
	}
}

// withDefaultNamespace lays down the namespace in which the test writes.
func withDefaultNamespace(t *testing.T, c *cluster) {
	t.Helper()
	for _, name := range []string{metav1.NamespaceDefault, "quiet"} {
		must(
			c.admin.CoreV1().Namespaces().Create(t.Context(),
				&corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}))(t)
	}
}

// create makes config maps of a case until a webhook has seen one, or until it is refused with that
// text before a webhook is called. It returns the last answer.
func (h *hooks) create(
	t *testing.T, c *cluster, witness, label, refusal string, options metav1.CreateOptions,
) (*corev1.ConfigMap, error) {
	t.Helper()
	var made *corev1.ConfigMap
	var answer error
	nth := 0
	eventually(t, "webhooks are in force", func(ctx context.Context) error {
		nth++
		name := fmt.Sprintf("%s-%d", label, nth)
		made, answer = c.admin.CoreV1().ConfigMaps(metav1.NamespaceDefault).Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"case": label}},
			Data:       map[string]string{"own": "kept"},
		}, options)
		if h.count(witness, name) == 0 &&
			(refusal == "" || answer == nil || !strings.Contains(answer.Error(), refusal)) {
			return errors.New("the witness was not asked")
		}
		return nil
	})
	return made, answer
}

func TestWebhooks(t *testing.T) {
	c := startCluster(t)
	withDefaultNamespace(t, c)
	h := startHooks(t, c.ca)
	ignore := func(w *admissionv1.MutatingWebhook) { w.FailurePolicy = ptr.To(admissionv1.Ignore) }
	brief := func(w *admissionv1.MutatingWebhook) { w.TimeoutSeconds = ptr.To[int32](1) }
	refused := func(w *admissionv1.MutatingWebhook) { w.ClientConfig.URL = ptr.To("https://127.0.0.1:1/") }
	condition := func(text string) func(w *admissionv1.MutatingWebhook) {
		return func(w *admissionv1.MutatingWebhook) {
			w.MatchConditions = []admissionv1.MatchCondition{{Name: "c", Expression: text}}
		}
	}
	all := func(changes ...func(*admissionv1.MutatingWebhook)) func(*admissionv1.MutatingWebhook) {
		return func(w *admissionv1.MutatingWebhook) {
			for _, f := range changes {
				f(w)
			}
		}
	}
	for i, tc := range []struct {
		name, does string
		change     func(*admissionv1.MutatingWebhook)
		options    metav1.CreateOptions
		mutating   bool
		code       int32  // 0 means that the object is written
		says       string // in the error
		data       string // keys and values of the written object, beside its own
	}{
		{name: "allow", does: "allow"},
		{name: "deny", does: "deny", code: http.StatusTeapot,
			says: `admission webhook "deny.c1.example.com" denied the request: not today`},
		{name: "deny although failures are ignored", does: "deny", change: ignore, code: http.StatusTeapot,
			says: "not today"},
		{name: "time-out", does: "hang", change: brief, code: 500, says: "context deadline exceeded"},
		{name: "time-out ignored", does: "hang", change: all(brief, ignore)},
		{name: "refused", does: "x", change: refused, code: 500, says: "connection refused"},
		{name: "refused, ignored", does: "x", change: all(refused, ignore)},
		{name: "panic", does: "panic", code: 500, says: "EOF"},
		{name: "panic ignored", does: "panic", change: ignore},
		{name: "garbage", does: "garbage", code: 500, says: "failed calling webhook"},
		{name: "garbage ignored", does: "garbage", change: ignore},
		{name: "status 500", does: "broken", code: 500, says: "broken"},
		{name: "another's answer", does: "other-uid", code: 500, says: "expected response.uid"},
		{name: "a validating one cannot patch", does: "patch", code: 500, says: "webhook response"},
		{name: "patch", does: "patch", mutating: true, data: "patched=yes"},
		{name: "mutating denies", does: "deny", mutating: true, code: http.StatusTeapot, says: "not today"},
		{name: "mutating hangs", does: "hang", mutating: true, change: all(brief, ignore)},
		{name: "a patch that does not fit", does: "unfit", mutating: true, code: 500,
			says: "Unable to remove nonexistent key"},
		{name: "no patch", does: "nopatch", mutating: true, code: 500, says: "undecodable patch"},
		{name: "no patch, ignored", does: "nopatch", mutating: true, change: ignore},
		{name: "condition holds", does: "deny", change: condition(`object.data["own"] == "kept"`),
			code: http.StatusTeapot, says: "not today"},
		{name: "condition does not hold", does: "deny", change: condition(`object.data["own"] == "lost"`)},
		{name: "condition fails", does: "deny", change: condition(`object.data["none"] == ""`), code: 403,
			says: "no such key: none"},
		{name: "condition fails, ignored", does: "deny", change: all(ignore, condition(`object.data["none"] == ""`))},
		{name: "namespace of another label", does: "deny", change: func(w *admissionv1.MutatingWebhook) {
			w.NamespaceSelector = &metav1.LabelSelector{
				MatchLabels: map[string]string{"kubernetes.io/metadata.name": "quiet"}}
		}},
		{name: "object of another label", does: "deny", change: func(w *admissionv1.MutatingWebhook) {
			w.ObjectSelector.MatchLabels["more"] = "x"
		}},
		{name: "dry run without side effects", does: "deny",
			options: metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}, code: http.StatusTeapot,
			says: "not today"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			label := fmt.Sprintf("c%d", i)
			witness := "/allow/" + label + "-witness"
			list := []admissionv1.MutatingWebhook{h.hook(c.ca, witness, label, nil),
				h.hook(c.ca, "/"+tc.does+"/"+label, label, tc.change)}
			meta := metav1.ObjectMeta{Name: label}
			if tc.mutating {
				must(c.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
					&admissionv1.MutatingWebhookConfiguration{ObjectMeta: meta, Webhooks: list},
					metav1.CreateOptions{}))(t)
			} else {
				must(
					c.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
						&admissionv1.ValidatingWebhookConfiguration{
							ObjectMeta: meta,
							Webhooks:   []admissionv1.ValidatingWebhook{validating(list[0]), validating(list[1])},
						}, metav1.CreateOptions{}))(t)
			}
			made, err := h.create(t, c, witness, label, tc.says, tc.options)
			var status apierrors.APIStatus
			switch {
			case tc.code == 0 && err != nil:
				t.Fatal(err)
			case tc.code != 0 &&
				(!errors.As(err, &status) || status.Status().Code != tc.code ||
					!strings.Contains(err.Error(), tc.says)):
				t.Fatalf("%v (%+v), want status %d with %q", err, status, tc.code, tc.says)
			case tc.code != 0:
				return
			}
			delete(made.Data, "own")
			if got := labels.Set(made.Data).String(); got != tc.data {
				t.Errorf("the object has %q, want %q", got, tc.data)
			}
		})
	}
}

// A change by a later webhook is shown again to an earlier one that wants it, once.
func TestWebhookReinvocation(t *testing.T) {
	c := startCluster(t)
	withDefaultNamespace(t, c)
	h := startHooks(t, c.ca)
	again := func(w *admissionv1.MutatingWebhook) {
		w.ReinvocationPolicy = ptr.To(admissionv1.IfNeededReinvocationPolicy)
	}
	list := []admissionv1.MutatingWebhook{
		h.hook(c.ca, "/count/again", "again", again), h.hook(c.ca, "/count/once", "again", nil),
		h.hook(c.ca, "/allow/last", "again", nil),
	}
	// The second one writes a key of its own.
	list[1].ClientConfig.URL = ptr.To(h.URL + "/patch/once")
	must(c.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
		&admissionv1.MutatingWebhookConfiguration{ObjectMeta: metav1.ObjectMeta{Name: "again"}, Webhooks: list},
		metav1.CreateOptions{}))(t)
	made, err := h.create(t, c, "/allow/last", "again", "", metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if made.Data["calls"] != "2" || made.Data["patched"] != "yes" {
		t.Errorf("the object has %v, want the key of the second call", made.Data)
	}
	if n := h.count("/patch/once", made.Name); n != 1 {
		t.Errorf("the webhook that is asked once was asked %d times", n)
	}
}

// A dry run must change nothing, so a webhook that might is not called.
func TestWebhookWithSideEffectsRefusesDryRun(t *testing.T) {
	c := startCluster(t)
	withDefaultNamespace(t, c)
	h := startHooks(t, c.ca)
	hook := validating(h.hook(c.ca, "/deny/some", "some", nil))
	hook.SideEffects = ptr.To(admissionv1.SideEffectClassSome)
	_, err := c.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
		&admissionv1.ValidatingWebhookConfiguration{
			ObjectMeta: metav1.ObjectMeta{Name: "some"}, Webhooks: []admissionv1.ValidatingWebhook{hook},
		}, metav1.CreateOptions{})
	if !apierrors.IsInvalid(err) || !strings.Contains(err.Error(), "webhooks[0].sideEffects") {
		t.Errorf("a webhook with side effects: %v", err)
	}
}

// A webhook that refuses all requests keeps the server from no write that a cluster needs, and can
// be deleted.
func TestWebhookCannotLockUp(t *testing.T) {
	c := startCluster(t)
	withDefaultNamespace(t, c)
	h := startHooks(t, c.ca)
	everything := func(w *admissionv1.MutatingWebhook) {
		w.Rules = []admissionv1.RuleWithOperations{{
			Operations: []admissionv1.OperationType{admissionv1.OperationAll},
			Rule: admissionv1.Rule{APIGroups: []string{"*"}, APIVersions: []string{"*"},
				Resources: []string{"*/*"}},
		}}
		w.ObjectSelector = nil
	}
	configurations := c.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations()
	must(configurations.Create(t.Context(), &admissionv1.ValidatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{Name: "closed"},
		Webhooks:   []admissionv1.ValidatingWebhook{validating(h.hook(c.ca, "/deny/closed", "closed", everything))},
	}, metav1.CreateOptions{}))(t)
	if _, err := h.create(t, c, "/deny/closed", "closed", "", metav1.CreateOptions{}); err == nil {
		t.Fatal("the webhook refuses nothing")
	}
	own := kubernetes.NewForConfigOrDie(c.LoopbackConfig())
	if err := c.ensure(t.Context(), own); err != nil {
		t.Errorf("the default objects cannot be created: %v", err)
	}
	must(own.RbacV1().ClusterRoles().Get(t.Context(), "cluster-admin", metav1.GetOptions{}))(t)
	controllers := kubernetes.NewForConfigOrDie(c.LoopbackConfigAs(rbac.APIEndpointsUser))
	eventually(t, "the controllers' rights are known", func(context.Context) error {
		if !c.defaults() {
			return errNotBootstrapped
		}
		return nil
	})
	must(
		controllers.DiscoveryV1().EndpointSlices(metav1.NamespaceDefault).Create(t.Context(),
			&discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Name: "kubernetes"}, AddressType: discoveryv1.AddressTypeIPv4,
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.1"}}},
			}, metav1.CreateOptions{}))(t)
	// Others are refused, however much they may do.
	for _, as := range []kubernetes.Interface{c.admin,
		kubernetes.NewForConfigOrDie(c.LoopbackConfigAs(user.KubeControllerManager, user.SystemPrivilegedGroup))} {
		_, err := as.RbacV1().ClusterRoles().Create(t.Context(),
			&rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
		if err == nil || !strings.Contains(err.Error(), "not today") {
			t.Errorf("a cluster role of somebody else: %v", err)
		}
	}
	if err := configurations.Delete(t.Context(), "closed", metav1.DeleteOptions{}); err != nil {
		t.Errorf("the configuration cannot be deleted: %v", err)
	}
}

// The flag helps when a configuration cannot be deleted.
func TestWebhooksDisabled(t *testing.T) {
	c := startCluster(t, func(cfg *Config) {
		cfg.Admission.Disable = []string{"ValidatingAdmissionWebhook"}
	})
	withDefaultNamespace(t, c)
	h := startHooks(t, c.ca)
	must(
		c.admin.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
			&admissionv1.ValidatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: "off"},
				Webhooks:   []admissionv1.ValidatingWebhook{validating(h.hook(c.ca, "/deny/off", "off", nil))},
			}, metav1.CreateOptions{}))(t)
	// A mutating one, which is later, is in force: so would be the other.
	must(
		c.admin.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
			&admissionv1.MutatingWebhookConfiguration{
				ObjectMeta: metav1.ObjectMeta{Name: "off"},
				Webhooks:   []admissionv1.MutatingWebhook{h.hook(c.ca, "/allow/off", "off", nil)},
			}, metav1.CreateOptions{}))(t)
	made, err := h.create(t, c, "/allow/off", "off", "", metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if n := h.count("/deny/off", made.Name); n != 0 {
		t.Errorf("the disabled plugin asked %d times", n)
	}
}
