package clients

import (
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Greeting is the custom resource of the operator: it wants a ConfigMap with its text.
type Greeting struct {
	metav1.TypeMeta   `json:",inline"`
	metav1.ObjectMeta `json:"metadata,omitempty"`
	Spec              GreetingSpec   `json:"spec,omitempty"`
	Status            GreetingStatus `json:"status,omitempty"`
}

// GreetingSpec is a user's wish.
type GreetingSpec struct {
	Text     string `json:"text"`
	Language string `json:"language,omitempty"` // the webhook's default is en
	Copies   int32  `json:"copies,omitempty"`   // the schema's default is 1
}

// GreetingStatus is the operator's observation.
type GreetingStatus struct {
	ObservedGeneration int64              `json:"observedGeneration,omitempty"`
	Text               string             `json:"text,omitempty"`
	Conditions         []metav1.Condition `json:"conditions,omitempty"`
}

// GreetingList is a list of them.
type GreetingList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata,omitempty"`
	Items           []Greeting `json:"items"`
}

// DeepCopyObject implements runtime.Object.
func (g *Greeting) DeepCopyObject() runtime.Object {
	out := *g
	out.ObjectMeta = *g.ObjectMeta.DeepCopy()
	out.Status.Conditions = nil
	for _, c := range g.Status.Conditions {
		out.Status.Conditions = append(out.Status.Conditions, *c.DeepCopy())
	}
	return &out
}

// DeepCopyObject implements runtime.Object.
func (l *GreetingList) DeepCopyObject() runtime.Object {
	out := *l
	out.ListMeta = *l.ListMeta.DeepCopy()
	out.Items = nil
	for i := range l.Items {
		out.Items = append(out.Items, *l.Items[i].DeepCopyObject().(*Greeting))
	}
	return &out
}

var greetings = schema.GroupVersion{Group: "clients.example.org", Version: "v1"}

func addGreetings(s *runtime.Scheme) error {
	s.AddKnownTypes(greetings, &Greeting{}, &GreetingList{})
	metav1.AddToGroupVersion(s, greetings)
	return nil
}

const greetingCRD = `
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: greetings.clients.example.org}
spec:
  group: clients.example.org
  scope: Namespaced
  names: {plural: greetings, singular: greeting, kind: Greeting, listKind: GreetingList, shortNames: [hi], categories: [all]}
  versions:
  - name: v1
    served: true
    storage: true
    subresources: {status: {}, scale: {specReplicasPath: .spec.copies, statusReplicasPath: .status.copies}}
    additionalPrinterColumns:
    - {name: Text, type: string, jsonPath: .spec.text, description: what it says}
    - {name: Age, type: date, jsonPath: .metadata.creationTimestamp}
    selectableFields: [{jsonPath: .spec.language}]
    schema:
      openAPIV3Schema:
        type: object
        description: A Greeting wants a ConfigMap with its text.
        properties:
          spec:
            type: object
            description: What the user wants.
            required: [text]
            properties:
              text: {type: string, maxLength: 40, description: The words to say.}
              language: {type: string}
              copies: {type: integer, format: int32, default: 1, minimum: 0}
            x-kubernetes-validations:
            - {rule: "self.text != 'nothing'", message: say something}
          status:
            type: object
            properties:
              observedGeneration: {type: integer, format: int64}
              text: {type: string}
              copies: {type: integer, format: int32}
              conditions:
                type: array
                x-kubernetes-list-type: map
                x-kubernetes-list-map-keys: [type]
                items:
                  type: object
                  required: [type, status, lastTransitionTime, reason, message]
                  properties:
                    type: {type: string}
                    status: {type: string}
                    observedGeneration: {type: integer, format: int64}
                    lastTransitionTime: {type: string, format: date-time}
                    reason: {type: string}
                    message: {type: string}
`
