package apiserver

import (
	"net/http"
	"strings"
	"testing"

	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/definitions"
)

const ownDefinition = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: things.example.com, annotations: {barque.io/definition-edition: "2"}}
spec:
  group: example.com
  scope: Cluster
  names: {kind: Thing, plural: things, shortNames: [SHORT]}
  versions: [{name: v1, served: true, storage: true, schema: {openAPIV3Schema: {type: object}}}]
`

// The cluster's own definitions are made, and replaced by those of a later edition. A later one
// stays, and one that a user has taken over.
func TestOwnDefinitions(t *testing.T) {
	c := startCluster(t)
	client := c.admin.Discovery().RESTClient()
	stored := extensionsclient.NewForConfigOrDie(c.LoopbackConfig()).CustomResourceDefinitions()
	ensure := func(edition, short, want string) {
		t.Helper()
		text := strings.NewReplacer(`"2"`, `"`+edition+`"`, "SHORT", short).Replace(ownDefinition)
		if err := definitions.Ensure(t.Context(), client, [][]byte{[]byte(text)}); err != nil {
			t.Fatal(err)
		}
		have, err := stored.Get(t.Context(), "things.example.com", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if got := have.Spec.Names.ShortNames[0]; got != want {
			t.Errorf("edition %s: got %s, want %s", edition, got, want)
		}
	}
	ensure("2", "two", "two")
	ensure("2", "changed", "two")
	ensure("10", "ten", "ten")
	ensure("9", "nine", "ten")
	have, err := stored.Get(t.Context(), "things.example.com", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	delete(have.Annotations, definitions.Edition)
	if _, err := stored.Update(t.Context(), have, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	ensure("11", "eleven", "ten")
	if err := definitions.Ensure(t.Context(), client, [][]byte{[]byte("kind: [")}); err == nil {
		t.Error("a text that is no YAML is accepted")
	}
}

// A definition whose status is written between the look and the write is replaced all the same, as
// that happens to each new definition.
func TestOwnDefinitionsAreReplacedBesideTheirStatus(t *testing.T) {
	c := startCluster(t)
	client := c.admin.Discovery().RESTClient()
	first := strings.Replace(ownDefinition, "SHORT", "two", 1)
	if err := definitions.Ensure(t.Context(), client, [][]byte{[]byte(first)}); err != nil {
		t.Fatal(err)
	}
	stored := extensionsclient.NewForConfigOrDie(c.LoopbackConfig()).CustomResourceDefinitions()
	config := rest.CopyConfig(c.LoopbackConfig())
	meets := 0
	config.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(r *http.Request) (*http.Response, error) {
			if r.Method == http.MethodPut && meets < 2 {
				meets++
				patch := `{"metadata":{"labels":{"meets":"` + strings.Repeat("x", meets) + `"}}}`
				if _, err := stored.Patch(r.Context(), "things.example.com", types.MergePatchType, []byte(patch),
					metav1.PatchOptions{}); err != nil {
					return nil, err
				}
			}
			return next.RoundTrip(r)
		})
	})
	met, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	later := strings.NewReplacer(`"2"`, `"3"`, "SHORT", "three").Replace(ownDefinition)
	if err := definitions.Ensure(t.Context(), met.Discovery().RESTClient(), [][]byte{[]byte(later)}); err != nil {
		t.Fatal(err)
	}
	have, err := stored.Get(t.Context(), "things.example.com", metav1.GetOptions{})
	if err != nil || meets != 2 || have.Spec.Names.ShortNames[0] != "three" {
		t.Errorf("it was not replaced after %d conflicts: %v, %v", meets, have.Spec.Names, err)
	}
}
