package clients

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-logr/logr"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/util/cert"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlconfig "sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	"sigs.k8s.io/controller-runtime/pkg/webhook"
	"sigs.k8s.io/controller-runtime/pkg/webhook/admission"
	"sigs.k8s.io/yaml"
)

const finalizer = "clients.example.org/farewell"

// operator keeps a ConfigMap for each Greeting, and notes the farewells: Greetings that it has seen
// go.
type operator struct {
	client.Client
	mu        sync.Mutex
	farewells map[string]bool
}

// Reconcile implements reconcile.Reconciler.
func (o *operator) Reconcile(ctx context.Context, req ctrl.Request) (ctrl.Result, error) {
	g := &Greeting{}
	if err := o.Get(ctx, req.NamespacedName, g); err != nil {
		return ctrl.Result{}, client.IgnoreNotFound(err)
	}
	if !g.DeletionTimestamp.IsZero() {
		o.mu.Lock()
		o.farewells[g.Name] = true
		o.mu.Unlock()
		if controllerutil.RemoveFinalizer(g, finalizer) {
			return ctrl.Result{}, client.IgnoreNotFound(o.Update(ctx, g))
		}
		return ctrl.Result{}, nil
	}
	if controllerutil.AddFinalizer(g, finalizer) {
		if err := o.Update(ctx, g); err != nil {
			return ctrl.Result{}, err
		}
	}
	m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: g.Namespace, Name: g.Name}}
	if _, err := controllerutil.CreateOrUpdate(ctx, o.Client, m, func() error {
		m.Data = map[string]string{"text": g.Spec.Text, "language": g.Spec.Language}
		return controllerutil.SetControllerReference(g, m, o.Scheme())
	}); err != nil {
		return ctrl.Result{}, err
	}
	before := g.DeepCopyObject().(*Greeting)
	g.Status.ObservedGeneration, g.Status.Text = g.Generation, g.Spec.Text
	meta.SetStatusCondition(&g.Status.Conditions,
		metav1.Condition{Type: "Ready", Status: metav1.ConditionTrue, Reason: "Said", Message: "the ConfigMap is there",
			ObservedGeneration: g.Generation})
	return ctrl.Result{}, o.Status().Patch(ctx, g, client.MergeFrom(before))
}

func (o *operator) saidFarewell(name string) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.farewells[name]
}

// Default implements admission.Defaulter.
func (o *operator) Default(_ context.Context, g *Greeting) error {
	if g.Spec.Language == "" {
		g.Spec.Language = "en"
	}
	return nil
}

// ValidateCreate implements admission.Validator.
func (o *operator) ValidateCreate(_ context.Context, g *Greeting) (admission.Warnings, error) {
	if g.Spec.Text == "forbidden" {
		return nil, errors.New("these words are forbidden")
	}
	return admission.Warnings{"heard: " + g.Spec.Text}, nil
}

// ValidateUpdate implements admission.Validator.
func (o *operator) ValidateUpdate(_ context.Context, old, g *Greeting) (admission.Warnings, error) {
	if old.Spec.Language != g.Spec.Language {
		return nil, errors.New("the language cannot change")
	}
	return nil, nil
}

// ValidateDelete implements admission.Validator.
func (o *operator) ValidateDelete(_ context.Context, g *Greeting) (admission.Warnings, error) {
	if g.Labels["keep"] == "yes" {
		return nil, errors.New("it is to be kept")
	}
	return nil, nil
}

// manager is a running instance of the operator.
type manager struct {
	*operator
	stop    func() error
	elected <-chan struct{}
}

// webhookServer is where the API server finds the webhooks of the operator.
type webhookServer struct {
	dir  string
	ca   []byte
	port int
}

func newWebhookServer(t *testing.T) *webhookServer {
	t.Helper()
	pem, key, err := cert.GenerateSelfSignedCertKey("127.0.0.1", []net.IP{net.IPv4(127, 0, 0, 1)}, nil)
	if err != nil {
		t.Fatal(err)
	}
	w := &webhookServer{dir: t.TempDir(), ca: pem}
	for name, data := range map[string][]byte{"tls.crt": pem, "tls.key": key} {
		if err := os.WriteFile(filepath.Join(w.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := fmt.Sscan(freePorts(t, 1)[0], &w.port); err != nil {
		t.Fatal(err)
	}
	return w
}

func operatorScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme,
		addGreetings} {
		if err := add(scheme); err != nil {
			t.Fatal(err)
		}
	}
	return scheme
}

// startOperator starts an instance; without a webhook server it has no webhooks.
func startOperator(t *testing.T, s *server, w *webhookServer) *manager {
	t.Helper()
	skip := true // the same controller runs again in this process
	long, renew := 2*time.Minute, 100*time.Second
	retry := 500 * time.Millisecond // a standby sees soon that the lease was given back
	o := ctrl.Options{
		Scheme: operatorScheme(t), Metrics: metricsserver.Options{BindAddress: "0"},
		Controller:     ctrlconfig.Controller{SkipNameValidation: &skip},
		LeaderElection: true, LeaderElectionID: "greeter", LeaderElectionNamespace: "default",
		LeaderElectionReleaseOnCancel: true,
		LeaseDuration:                 &long, RenewDeadline: &renew, RetryPeriod: &retry,
	}
	if w != nil {
		o.WebhookServer = webhook.NewServer(webhook.Options{Host: "127.0.0.1", Port: w.port, CertDir: w.dir})
	}
	mgr, err := ctrl.NewManager(s.config(), o)
	if err != nil {
		t.Fatal(err)
	}
	op := &operator{Client: mgr.GetClient(), farewells: map[string]bool{}}
	if err := ctrl.NewControllerManagedBy(mgr).For(&Greeting{}).Owns(&corev1.ConfigMap{}).Complete(op); err != nil {
		t.Fatal(err)
	}
	if w != nil {
		if err := ctrl.NewWebhookManagedBy(mgr, &Greeting{}).WithDefaulter(op).WithValidator(
			op).Complete(); err != nil {
			t.Fatal(err)
		}
	}
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }() // stop ends it
	stop := sync.OnceValue(func() error {
		cancel()
		select {
		case err := <-ended:
			return err
		case <-time.After(hang):
			return errors.New("the operator does not stop")
		}
	})
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("operator: %v", err)
		}
	})
	return &manager{op, stop, mgr.Elected()}
}

// configurations have the API server ask the operator's webhooks.
func (w *webhookServer) configurations() []client.Object {
	at := func(path string) admissionregistrationv1.WebhookClientConfig {
		url := fmt.Sprintf("https://127.0.0.1:%d%s", w.port, path)
		return admissionregistrationv1.WebhookClientConfig{URL: &url, CABundle: w.ca}
	}
	rules := func(ops ...admissionregistrationv1.OperationType) []admissionregistrationv1.RuleWithOperations {
		return []admissionregistrationv1.RuleWithOperations{{Operations: ops, Rule: admissionregistrationv1.Rule{
			APIGroups: []string{greetings.Group}, APIVersions: []string{"v1"}, Resources: []string{"greetings"},
		}}}
	}
	none := admissionregistrationv1.SideEffectClassNone
	meta := metav1.ObjectMeta{Name: "greeter.clients.example.org"}
	return []client.Object{
		&admissionregistrationv1.MutatingWebhookConfiguration{ObjectMeta: meta,
			Webhooks: []admissionregistrationv1.MutatingWebhook{{
				Name: meta.Name, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
				ClientConfig: at("/mutate-clients-example-org-v1-greeting"),
				Rules:        rules(admissionregistrationv1.Create, admissionregistrationv1.Update),
			}}},
		&admissionregistrationv1.ValidatingWebhookConfiguration{ObjectMeta: meta,
			Webhooks: []admissionregistrationv1.ValidatingWebhook{{
				Name: meta.Name, SideEffects: &none, AdmissionReviewVersions: []string{"v1"},
				ClientConfig: at("/validate-clients-example-org-v1-greeting"),
				Rules: rules(admissionregistrationv1.Create, admissionregistrationv1.Update,
					admissionregistrationv1.Delete),
			}}},
	}
}

// warnings collects the API server's warnings.
type warnings struct {
	mu    sync.Mutex
	texts []string
}

// HandleWarningHeaderWithContext implements rest.WarningHandlerWithContext.
func (w *warnings) HandleWarningHeaderWithContext(_ context.Context, _ int, _, text string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.texts = append(w.texts, text)
}

func (w *warnings) heard(text string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Contains(w.texts, text)
}

func greeting(name, text string) *Greeting {
	return &Greeting{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: GreetingSpec{Text: text}}
}

func TestOperator(t *testing.T) {
	ctrl.SetLogger(logr.Discard())
	s, ctx := startServer(t), t.Context()
	config, heard := s.config(), &warnings{}
	config.WarningHandlerWithContext = heard
	admin := must(client.New(config, client.Options{Scheme: operatorScheme(t)}))(t)
	crd := &apiextensionsv1.CustomResourceDefinition{}
	if err := yaml.UnmarshalStrict([]byte(greetingCRD), crd); err != nil {
		t.Fatal(err)
	}
	if err := admin.Create(ctx, crd); err != nil {
		t.Fatal(err)
	}
	eventually(t, "the CRD is established", func(ctx context.Context) error {
		if err := admin.Get(ctx, client.ObjectKeyFromObject(crd), crd); err != nil {
			return err
		}
		for _, c := range crd.Status.Conditions {
			if c.Type == apiextensionsv1.Established && c.Status == apiextensionsv1.ConditionTrue {
				return nil
			}
		}
		return fmt.Errorf("conditions %+v", crd.Status.Conditions)
	})

	hooks := newWebhookServer(t)
	first := startOperator(t, s, hooks)
	await(t, "the first instance is elected", first.elected)
	for _, configuration := range hooks.configurations() {
		if err := admin.Create(ctx, configuration); err != nil {
			t.Fatal(err)
		}
	}
	// A new configuration reaches the API server a moment later.
	eventually(t, "the webhooks are asked", func(ctx context.Context) error {
		probe := greeting("probe", "forbidden")
		err := admin.Create(ctx, probe, client.DryRunAll)
		if err == nil || !strings.Contains(err.Error(), "these words are forbidden") || probe.Spec.Language == "en" {
			return fmt.Errorf("a forbidden Greeting: %v", err)
		}
		probe = greeting("probe", "hello")
		if err := admin.Create(ctx, probe, client.DryRunAll); err != nil || probe.Spec.Language != "en" {
			return fmt.Errorf("language %q, %v", probe.Spec.Language, err)
		}
		return nil
	})

	said := func(name, text string) {
		t.Helper()
		eventually(t, "the operator has reconciled "+name, func(ctx context.Context) error {
			g, m := &Greeting{}, &corev1.ConfigMap{}
			key := client.ObjectKey{Namespace: "default", Name: name}
			if err := errors.Join(admin.Get(ctx, key, g), admin.Get(ctx, key, m)); err != nil {
				return err
			}
			ready := meta.IsStatusConditionTrue(g.Status.Conditions, "Ready")
			if !ready || g.Status.Text != text || g.Status.ObservedGeneration != g.Generation ||
				m.Data["text"] != text || !metav1.IsControlledBy(m, g) {
				return fmt.Errorf("generation %d, status %+v, data %v", g.Generation, g.Status, m.Data)
			}
			return nil
		})
	}
	gone := func(name string, kinds ...client.Object) {
		t.Helper()
		eventually(t, name+" is gone", func(ctx context.Context) error {
			for _, o := range kinds {
				if err := admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: name},
					o); !apierrors.IsNotFound(err) {
					return fmt.Errorf("%T: %v", o, err)
				}
			}
			return nil
		})
	}

	t.Run("Reconciles", func(t *testing.T) {
		g := greeting("one", "hello")
		if err := admin.Create(ctx, g); err != nil {
			t.Fatal(err)
		}
		if g.Spec.Language != "en" || g.Spec.Copies != 1 || g.Generation != 1 || !heard.heard("heard: hello") {
			t.Errorf("created %+v, generation %d, warnings %v", g.Spec, g.Generation, heard.texts)
		}
		said("one", "hello")
		if err := admin.Get(ctx, client.ObjectKeyFromObject(g), g); err != nil || g.Generation != 1 {
			t.Errorf("writes of status and metadata made generation %d, %v", g.Generation, err)
		}
		change := client.RawPatch("application/merge-patch+json",
			[]byte(`{"spec":{"text":"good day"},"status":{"text":"ignored"}}`))
		if err := admin.Patch(ctx, g, change); err != nil || g.Generation != 2 || g.Status.Text != "hello" {
			t.Errorf("patched: generation %d, status %+v, %v", g.Generation, g.Status, err)
		}
		said("one", "good day")
	})

	t.Run("Refuses", func(t *testing.T) {
		for text, want := range map[string]string{
			"forbidden":             "these words are forbidden",
			"nothing":               "say something",
			strings.Repeat("x", 41): "may not be more than 40",
		} {
			err := admin.Create(ctx, greeting("refused", text))
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Errorf("text %q: %v", text, err)
			}
		}
		g := greeting("one", "")
		err := admin.Patch(ctx, g,
			client.RawPatch("application/merge-patch+json", []byte(`{"spec":{"language":"de"}}`)))
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "the language cannot change") {
			t.Errorf("changing the language: %v", err)
		}
		if err := admin.Patch(ctx, g,
			client.RawPatch("application/merge-patch+json",
				[]byte(`{"metadata":{"labels":{"keep":"yes"}}}`))); err != nil {
			t.Fatal(err)
		}
		if err := admin.Delete(ctx, g); !apierrors.IsForbidden(err) {
			t.Errorf("deleting what is to be kept: %v", err)
		}
	})

	t.Run("RepairsDeletes", func(t *testing.T) {
		m := &corev1.ConfigMap{}
		if err := admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: "one"}, m); err != nil {
			t.Fatal(err)
		}
		if err := admin.Delete(ctx, m); err != nil {
			t.Fatal(err)
		}
		eventually(t, "the ConfigMap is there again", func(ctx context.Context) error {
			again := &corev1.ConfigMap{}
			if err := admin.Get(ctx, client.ObjectKeyFromObject(m), again); err != nil {
				return err
			}
			if again.UID == m.UID {
				return errors.New("it is still the old one")
			}
			return nil
		})
	})

	for name, signal := range map[string]syscall.Signal{"stop": syscall.SIGTERM, "kill": syscall.SIGKILL} {
		t.Run("SurvivesRestart/"+name, func(t *testing.T) {
			if err := admin.Create(ctx, greeting("before-"+name, "before")); err != nil {
				t.Fatal(err)
			}
			said("before-"+name, "before")
			s.restart(signal)
			eventually(t, "a Greeting is taken after the restart", func(ctx context.Context) error {
				return client.IgnoreAlreadyExists(admin.Create(ctx, greeting("after-"+name, "after")))
			})
			said("after-"+name, "after")
			if err := admin.Delete(ctx, greeting("before-"+name, "")); err != nil {
				t.Fatal(err)
			}
			gone("before-"+name, &Greeting{}, &corev1.ConfigMap{})
			if !first.saidFarewell("before-" + name) {
				t.Error("the operator did not notice the delete")
			}
		})
	}

	t.Run("TakesOver", func(t *testing.T) {
		second := startOperator(t, s, nil)
		lease := &coordinationv1.Lease{}
		key := client.ObjectKey{Namespace: "default", Name: "greeter"}
		if err := admin.Get(ctx, key, lease); err != nil || lease.Spec.HolderIdentity == nil ||
			*lease.Spec.HolderIdentity == "" {
			t.Fatalf("lease %+v, %v", lease.Spec, err)
		}
		holder := *lease.Spec.HolderIdentity
		select {
		case <-second.elected:
			t.Fatal("there are two leaders")
		default:
		}
		for _, configuration := range hooks.configurations() { // they go with the first instance
			if err := admin.Delete(ctx, configuration); err != nil {
				t.Fatal(err)
			}
		}
		eventually(t, "a Greeting is taken without the webhooks", func(ctx context.Context) error {
			probe := greeting("probe", "forbidden")
			return admin.Create(ctx, probe, client.DryRunAll)
		})
		if err := first.stop(); err != nil {
			t.Fatal(err)
		}
		await(t, "the second instance is elected", second.elected)
		if err := admin.Get(ctx, key, lease); err != nil || *lease.Spec.HolderIdentity == holder {
			t.Errorf("lease %+v, %v", lease.Spec, err)
		}
		if err := admin.Create(ctx, greeting("second", "hello")); err != nil {
			t.Fatal(err)
		}
		said("second", "hello")
		// The finalizer keeps an object that was deleted while no operator ran.
		if err := second.stop(); err != nil {
			t.Fatal(err)
		}
		if err := admin.Delete(ctx, greeting("second", "")); err != nil {
			t.Fatal(err)
		}
		left := &Greeting{}
		if err := admin.Get(ctx, client.ObjectKey{Namespace: "default", Name: "second"}, left); err != nil ||
			left.DeletionTimestamp == nil {
			t.Errorf("a Greeting with a finalizer, deleted: %+v, %v", left.ObjectMeta, err)
		}
		third := startOperator(t, s, nil)
		gone("second", &Greeting{}, &corev1.ConfigMap{})
		if !third.saidFarewell("second") {
			t.Error("the third instance did not notice the delete")
		}
	})

	t.Run("GoesWithItsDefinition", func(t *testing.T) {
		list := &GreetingList{}
		if err := admin.List(ctx, list); err != nil || len(list.Items) == 0 {
			t.Fatalf("%d Greetings, %v", len(list.Items), err)
		}
		// it removes its finalizer from the objects
		await(t, "an instance is elected", startOperator(t, s, nil).elected)
		left := map[string]bool{}
		for _, g := range list.Items {
			left[g.Name] = true
		}
		if err := admin.Delete(ctx, crd); err != nil {
			t.Fatal(err)
		}
		for _, name := range slices.Sorted(maps.Keys(left)) {
			gone(name, &corev1.ConfigMap{})
		}
		eventually(t, "the CRD is gone", func(ctx context.Context) error {
			if err := admin.Get(ctx, client.ObjectKeyFromObject(crd),
				&apiextensionsv1.CustomResourceDefinition{}); !apierrors.IsNotFound(err) {
				return fmt.Errorf("it is still there: %v", err)
			}
			return nil
		})
	})
}

// await waits until a channel is closed.
func await(t testing.TB, what string, c <-chan struct{}) {
	t.Helper()
	select {
	case <-c:
	case <-time.After(hang):
		t.Fatalf("timed out: %s", what)
	}
}
