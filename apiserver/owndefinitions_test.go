package apiserver

import (
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	extensionsclient "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset/typed/apiextensions/v1"

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
