package policystatus_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/discovery"
	fakediscovery "k8s.io/client-go/discovery/fake"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/openapi"
	"k8s.io/client-go/openapi/openapitest"

	"github.com/barque/barque/controllers/controllertest"
	"github.com/barque/barque/controllers/policystatus"
)

// described is the in-memory API with discovery and schemas of upstream's groups.
type described struct {
	kubernetes.Interface
	known *fakediscovery.FakeDiscovery
}

func (d described) Discovery() discovery.DiscoveryInterfaces { return schemas{d.known} }

type schemas struct{ *fakediscovery.FakeDiscovery }

func (schemas) OpenAPIV3() openapi.Client { return openapitest.NewEmbeddedFileClient() }

func policy(name, group, resource string, expressions ...string) *admissionv1.ValidatingAdmissionPolicy {
	p := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Generation: 1}}
	p.Spec.MatchConstraints = &admissionv1.MatchResources{ResourceRules: []admissionv1.NamedRuleWithOperations{{
		RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Create},
			Rule: admissionv1.Rule{APIGroups: []string{group}, APIVersions: []string{"v1"},
				Resources: []string{resource}},
		},
	}}}
	for _, e := range expressions {
		p.Spec.Validations = append(p.Spec.Validations, admissionv1.Validation{Expression: e})
	}
	return p
}

// start runs the controller over policies and returns the cluster and how often a status was
// written.
func start(
	t *testing.T, policies ...*admissionv1.ValidatingAdmissionPolicy,
) (c *controllertest.Cluster, writes func() int) {
	t.Helper()
	c = controllertest.New(t)
	for _, p := range policies {
		c.Add(p)
	}
	ctrl, err := policystatus.New(policystatus.Config{Informers: c.Informers})
	if err != nil {
		t.Fatal(err)
	}
	known := &fakediscovery.FakeDiscovery{Fake: &c.Client.Fake}
	known.Resources = []*metav1.APIResourceList{
		{GroupVersion: "v1",
			APIResources: []metav1.APIResource{{Name: "configmaps", Kind: "ConfigMap", Namespaced: true}}},
		{GroupVersion: "apps/v1",
			APIResources: []metav1.APIResource{{Name: "deployments", Kind: "Deployment", Namespaced: true}}},
	}
	c.Start(func(ctx context.Context, client kubernetes.Interface) error {
		return ctrl.Run(ctx, described{client, known})
	})
	return c, func() int {
		n := 0
		for _, a := range c.Client.Actions() {
			if a.Matches("update", "validatingadmissionpolicies/status") {
				n++
			}
		}
		return n
	}
}

// warnings returns the warnings about the generation of a policy, when that has been checked.
func warnings(t *testing.T, c *controllertest.Cluster, name string, generation int64) string {
	t.Helper()
	var out []string
	controllertest.Eventually(t, fmt.Sprintf("the check of generation %d of %s", generation, name), func() bool {
		p, err := c.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies().Get(t.Context(), name,
			metav1.GetOptions{})
		if err != nil || p.Status.ObservedGeneration != generation || p.Status.TypeChecking == nil {
			return false
		}
		for _, w := range p.Status.TypeChecking.ExpressionWarnings {
			out = append(out, w.FieldRef+": "+w.Warning)
		}
		return true
	})
	return strings.Join(out, "\n")
}

func TestChecksTypes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, _ := start(t,
			policy("right", "apps", "deployments", "object.spec.replicas > 1", "!has(object.spec.paused)"),
			policy("wrong", "apps", "deployments", "object.spec.replicas > 1", "object.spec.replicas > '1'",
				"object.spec.none == 1"),
			policy("unserved", "stars.example.com", "stars", "object.spec.none == 1"),
		)
		for _, name := range []string{"right", "unserved"} {
			if got := warnings(t, c, name, 1); got != "" {
				t.Errorf("%s: %s", name, got)
			}
		}
		got := warnings(t, c, "wrong", 1)
		for _, want := range []string{
			"spec.validations[1].expression: apps/v1, Kind=Deployment: ", "no matching overload",
			"spec.validations[2].expression: apps/v1, Kind=Deployment: ", "undefined field 'none'",
		} {
			if !strings.Contains(got, want) {
				t.Errorf("%q is missing in\n%s", want, got)
			}
		}
		if strings.Contains(got, "validations[0]") {
			t.Errorf("a warning about what is right:\n%s", got)
		}
	})
}

// A policy is checked once for each generation, and old findings are removed.
func TestChecksAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, writes := start(t, policy("p", "apps", "deployments", "object.spec.none == 1"))
		if got := warnings(t, c, "p", 1); got == "" {
			t.Error("no warning")
		}
		policies := c.Client.AdmissionregistrationV1().ValidatingAdmissionPolicies()
		change := func(edit func(*admissionv1.ValidatingAdmissionPolicy)) {
			t.Helper()
			p, err := policies.Get(t.Context(), "p", metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			edit(p)
			if _, err := policies.Update(t.Context(), p, metav1.UpdateOptions{}); err != nil {
				t.Fatal(err)
			}
		}
		change(func(p *admissionv1.ValidatingAdmissionPolicy) { p.Labels = map[string]string{"a": "b"} })
		time.Sleep(time.Minute)
		if n := writes(); n != 1 {
			t.Errorf("%d writes for one generation", n)
		}
		change(func(p *admissionv1.ValidatingAdmissionPolicy) {
			p.Generation++
			p.Spec.Validations[0].Expression = "object.spec.replicas == 1"
		})
		if got := warnings(t, c, "p", 2); got != "" {
			t.Errorf("after the change: %s", got)
		}
		time.Sleep(time.Minute)
		if n := writes(); n != 2 {
			t.Errorf("%d writes for two generations", n)
		}
	})
}
