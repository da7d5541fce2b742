package registry

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/admission"
	mutatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/mutating"
	validatingpolicy "k8s.io/apiserver/pkg/admission/plugin/policy/validating"
	mutatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/mutating"
	validatingwebhook "k8s.io/apiserver/pkg/admission/plugin/webhook/validating"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/fake"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/tools/cache"
)

// counting is a plugin that counts the requests that it sees.
type counting struct{ seen int }

func (*counting) Handles(admission.Operation) bool { return true }

func (c *counting) Admit(context.Context, admission.Attributes, admission.ObjectInterfaces) error {
	c.seen++
	return nil
}

func (c *counting) Validate(ctx context.Context, a admission.Attributes, o admission.ObjectInterfaces) error {
	return c.Admit(ctx, a, o)
}

// TestPluginsWithoutRules: a plugin with rules of users sees no request while it is known that
// there are none, unless its configuration may name others.
func TestPluginsWithoutRules(t *testing.T) {
	create := map[string]func(kubernetes.Interface, metav1.ObjectMeta) error{
		mutatingpolicy.PluginName: func(c kubernetes.Interface, m metav1.ObjectMeta) error {
			_, err := c.AdmissionregistrationV1().MutatingAdmissionPolicies().Create(t.Context(),
				&admissionv1.MutatingAdmissionPolicy{ObjectMeta: m}, metav1.CreateOptions{})
			return err
		},
		mutatingwebhook.PluginName: func(c kubernetes.Interface, m metav1.ObjectMeta) error {
			_, err := c.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(),
				&admissionv1.MutatingWebhookConfiguration{ObjectMeta: m}, metav1.CreateOptions{})
			return err
		},
		validatingpolicy.PluginName: func(c kubernetes.Interface, m metav1.ObjectMeta) error {
			_, err := c.AdmissionregistrationV1().ValidatingAdmissionPolicies().Create(t.Context(),
				&admissionv1.ValidatingAdmissionPolicy{ObjectMeta: m}, metav1.CreateOptions{})
			return err
		},
		validatingwebhook.PluginName: func(c kubernetes.Interface, m metav1.ObjectMeta) error {
			_, err := c.AdmissionregistrationV1().ValidatingWebhookConfigurations().Create(t.Context(),
				&admissionv1.ValidatingWebhookConfiguration{ObjectMeta: m}, metav1.CreateOptions{})
			return err
		},
	}
	if len(create) != len(rulesOf) {
		t.Fatalf("%d plugins are tested, of %d", len(create), len(rulesOf))
	}
	for name, create := range create {
		t.Run(name, func(t *testing.T) {
			client := fake.NewClientset()
			factory := informers.NewSharedInformerFactory(client, 0)
			registrations := factory.Admissionregistration().V1()
			var plain, configured counting
			never := func(string) bool { return false }
			usual := sparer{registrations, never}.Decorate(&plain, name)
			withFile := sparer{registrations, func(plugin string) bool { return plugin == name }}.Decorate(&configured,
				name)
			if other := (sparer{registrations, never}).Decorate(&plain,
				"Priority"); other != admission.Interface(&plain) {
				t.Error("a plugin without rules of users is decorated")
			}
			see := func(what string, want, wantConfigured int) {
				t.Helper()
				plain.seen, configured.seen = 0, 0
				a := admission.NewAttributesRecord(&corev1.Pod{}, nil, corev1.SchemeGroupVersion.WithKind("Pod"), "ns",
					"p",
					corev1.SchemeGroupVersion.WithResource("pods"), "", admission.Create, &metav1.CreateOptions{},
					false, &user.DefaultInfo{Name: "ann"})
				for _, plugin := range []admission.Interface{usual, withFile} {
					if err := plugin.(admission.MutationInterface).Admit(t.Context(), a, nil); err != nil {
						t.Fatal(err)
					}
					if err := plugin.(admission.ValidationInterface).Validate(t.Context(), a, nil); err != nil {
						t.Fatal(err)
					}
				}
				if plain.seen != want || configured.seen != wantConfigured {
					t.Errorf("%s: the plugin saw %d requests and %d with a configuration, want %d and %d", what,
						plain.seen, configured.seen, want, wantConfigured)
				}
			}
			see("before the rules are known", 2, 2)
			factory.Start(t.Context().Done())
			factory.WaitForCacheSync(t.Context().Done())
			see("without rules", 0, 2)
			seen := make(chan struct{}, 1)
			if _, err := rulesOf[name](registrations).AddEventHandler(
				cache.ResourceEventHandlerFuncs{AddFunc: func(any) { seen <- struct{}{} }}); err != nil {
				t.Fatal(err)
			}
			if err := create(client, metav1.ObjectMeta{Name: "rule"}); err != nil {
				t.Fatal(err)
			}
			<-seen
			see("with a rule", 2, 2)
		})
	}
}

const staticPolicy = `
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata: {name: none.static.k8s.io}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - {apiGroups: [""], apiVersions: [v1], operations: [CREATE], resources: [persistentvolumes]}
  validations: [{expression: "false", message: no volumes here}]
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata: {name: none.static.k8s.io}
spec: {policyName: none.static.k8s.io, validationActions: [Deny]}
`

// TestRulesInFiles: a policy that a configuration names holds although the API has none.
func TestRulesInFiles(t *testing.T) {
	dir := t.TempDir()
	config := filepath.Join(dir, "admission.yaml")
	manifests := filepath.Join(dir, "manifests")
	text := fmt.Sprintf(`
apiVersion: apiserver.config.k8s.io/v1
kind: AdmissionConfiguration
plugins:
- name: ValidatingAdmissionPolicy
  configuration: {apiVersion: apiserver.config.k8s.io/v1, kind: ValidatingAdmissionPolicyConfiguration, staticManifestsDir: %q}
`, manifests)
	if err := errors.Join(os.Mkdir(manifests, 0o700),
		os.WriteFile(filepath.Join(manifests, "policy.yaml"), []byte(staticPolicy), 0o600),
		os.WriteFile(config, []byte(text), 0o600)); err != nil {
		t.Fatal(err)
	}
	chain, err := build(t, Settings{ConfigFile: config, Disable: []string{"NamespaceLifecycle", "ServiceAccount"}})
	if err != nil {
		t.Fatal(err)
	}
	volume := &corev1.PersistentVolume{ObjectMeta: metav1.ObjectMeta{Name: "v"}}
	a := admission.NewAttributesRecord(volume, nil, corev1.SchemeGroupVersion.WithKind("PersistentVolume"), "",
		volume.Name,
		corev1.SchemeGroupVersion.WithResource("persistentvolumes"), "", admission.Create, &metav1.CreateOptions{},
		false, &user.DefaultInfo{Name: "ann"})
	err = chain.(admission.ValidationInterface).Validate(t.Context(), a,
		admission.NewObjectInterfacesFromScheme(scheme.Scheme))
	if err == nil || !strings.Contains(err.Error(), "no volumes here") {
		t.Errorf("a volume that a policy in a file denies: %v", err)
	}
}
