package gateway

import (
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensionsfake "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/fake"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	gatewayfake "sigs.k8s.io/gateway-api/pkg/client/clientset/versioned/fake"

	"github.com/barque/barque/edge/gateway/crds"
	"github.com/barque/barque/edge/gateway/translate"
	"github.com/barque/barque/internal/needs"
)

// installed runs one round in a cluster with these definitions, and another one that changes
// nothing.
func installed(t *testing.T, definitions ...runtime.Object) Clients {
	t.Helper()
	client, extensions, gateways := fake.NewClientset(), apiextensionsfake.NewClientset(definitions...),
		gatewayfake.NewSimpleClientset()
	clients := Clients{API: client, Definitions: extensions.ApiextensionsV1().CustomResourceDefinitions(),
		Gateways: gateways.GatewayV1()}
	if err := install(t.Context(), clients); err != nil {
		t.Fatal(err)
	}
	for _, clear := range []interface{ ClearActions() }{client, extensions, gateways} {
		clear.ClearActions()
	}
	if err := install(t.Context(), clients); err != nil {
		t.Fatal(err)
	}
	for _, a := range append(append(client.Actions(), extensions.Actions()...), gateways.Actions()...) {
		if a.GetVerb() != "get" && a.GetVerb() != "list" {
			t.Errorf("the second round has written: %s %s", a.GetVerb(), a.GetResource().Resource)
		}
	}
	return clients
}

func TestInstall(t *testing.T) {
	clients := installed(t)
	if _, err := clients.API.CoreV1().ServiceAccounts("kube-system").Get(t.Context(), Account,
		metav1.GetOptions{}); err != nil {
		t.Error(err)
	}
	all, err := crds.All()
	if err != nil {
		t.Fatal(err)
	}
	for _, crd := range all {
		have, err := clients.Definitions.Get(t.Context(), crd.Name, metav1.GetOptions{})
		if err != nil || have.Annotations[crds.Installed] != "true" {
			t.Errorf("%s: %v", crd.Name, err)
		}
	}
	if len(all) == 0 {
		return // built without definitions, so there is no class either
	}
	class, err := clients.Gateways.GatewayClasses().Get(t.Context(), translate.Class, metav1.GetOptions{})
	if err != nil || class.Spec.ControllerName != translate.GatewayController {
		t.Errorf("%+v, %v", class, err)
	}
}

// TestDefaultIngressClass: ours is the default while no other class is, unless somebody has said
// no.
func TestDefaultIngressClass(t *testing.T) {
	class := func(name, value string) runtime.Object {
		c := &networkingv1.IngressClass{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: networkingv1.IngressClassSpec{Controller: "x/y"}}
		if value != "" {
			c.Annotations = map[string]string{networkingv1.AnnotationIsDefaultIngressClass: value}
		}
		return c
	}
	for _, c := range []struct {
		name    string
		classes []runtime.Object
		want    string
	}{
		{"alone", nil, "true"},
		{"beside another one", []runtime.Object{class("nginx", "")}, "true"},
		{"beside the default one", []runtime.Object{class("nginx", "true")}, ""},
		{"another default comes", []runtime.Object{class("nginx", "true"), class("barque", "true")}, ""},
		{"the other default has gone", []runtime.Object{class("barque", "")}, "true"},
		{"somebody said no", []runtime.Object{class("barque", "false")}, "false"},
		{"somebody said no, beside the default one", []runtime.Object{class("nginx", "true"), class("barque", "false")},
			"false"},
	} {
		t.Run(c.name, func(t *testing.T) {
			client := fake.NewClientset(c.classes...)
			if err := ingressClass(t.Context(), client); err != nil {
				t.Fatal(err)
			}
			own, err := client.NetworkingV1().IngressClasses().Get(t.Context(), translate.Class, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if got := own.Annotations[networkingv1.AnnotationIsDefaultIngressClass]; got != c.want {
				t.Errorf("default %q, want %q", got, c.want)
			}
		})
	}
}

// TestDefinitionsOfUsers: those of users stay, and older ones of ours are replaced.
func TestDefinitionsOfUsers(t *testing.T) {
	all, err := crds.All()
	if err != nil {
		t.Fatal(err)
	}
	if len(all) == 0 {
		needs.Missing(t, "the definitions of the Gateway API: run `make gateway-crds`",
			"that users' definitions are left alone")
	}
	const version = "gateway.networking.k8s.io/bundle-version"
	for _, c := range []struct {
		name        string
		annotations map[string]string
		replaced    bool
	}{
		{"a user's", map[string]string{version: "v1.0.0"}, false},
		{"an older one of ours", map[string]string{version: "v1.0.0", crds.Installed: "true"}, true},
		{"a newer one of ours", map[string]string{version: "v99.0.0", crds.Installed: "true"}, false},
		{"without a version", map[string]string{crds.Installed: "true"}, false},
		{"without annotations", nil, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			have := &apiextensionsv1.CustomResourceDefinition{
				ObjectMeta: metav1.ObjectMeta{Name: all[0].Name, Annotations: c.annotations}}
			clients := installed(t, have)
			got, err := clients.Definitions.Get(t.Context(), all[0].Name, metav1.GetOptions{})
			if err != nil {
				t.Fatal(err)
			}
			if replaced := len(got.Spec.Versions) > 0; replaced != c.replaced {
				t.Errorf("replaced: %v", replaced)
			}
		})
	}
}
