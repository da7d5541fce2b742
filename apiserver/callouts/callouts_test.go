package callouts

import (
	"errors"
	"net/url"
	"slices"
	"testing"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"k8s.io/utils/ptr"
)

type listed[T any] []T

func (l listed[T]) List(labels.Selector) ([]T, error) { return l, nil }

// sources is a server that reaches no Service but ns/up, at the port 443.
func sources() *Sources {
	return &Sources{Resolve: func(namespace, name string, port int32) (*url.URL, error) {
		if namespace == "ns" && name == "up" && port == 443 {
			return &url.URL{}, nil
		}
		return nil, errors.New("no endpoint")
	}}
}

func service(name string) admissionv1.WebhookClientConfig {
	return admissionv1.WebhookClientConfig{Service: &admissionv1.ServiceReference{Namespace: "ns", Name: name}}
}

func check(t *testing.T, s *Sources, want ...Failing) {
	t.Helper()
	got, err := s.Find()
	if err != nil || !slices.EqualFunc(got, want, func(a, b Failing) bool {
		return a.Kind == b.Kind && a.Name == b.Name && slices.Equal(a.Webhooks, b.Webhooks) && a.Service == b.Service &&
			a.Why == b.Why
	}) {
		t.Errorf("%+v, %v; want %+v", got, err, want)
	}
}

// TestWebhooks: a webhook that cannot be called refuses requests, unless its policy is to ignore
// that.
func TestWebhooks(t *testing.T) {
	s := sources()
	check(t, s)
	otherPort := service("up")
	otherPort.Service.Port = ptr.To[int32](8443)
	s.Validating = listed[*admissionv1.ValidatingWebhookConfiguration]{
		{ObjectMeta: metav1.ObjectMeta{Name: "v"}, Webhooks: []admissionv1.ValidatingWebhook{
			{Name: "up", ClientConfig: service("up"), FailurePolicy: ptr.To(admissionv1.Fail)},
			{Name: "down", ClientConfig: service("down"), FailurePolicy: ptr.To(admissionv1.Fail)},
			{Name: "spared", ClientConfig: service("down"), FailurePolicy: ptr.To(admissionv1.Ignore)},
			{Name: "by default", ClientConfig: service("down")},
			{Name: "other port", ClientConfig: otherPort},
			{Name: "url", ClientConfig: admissionv1.WebhookClientConfig{URL: ptr.To("https://127.0.0.1:1")}},
		}},
	}
	s.Mutating = listed[*admissionv1.MutatingWebhookConfiguration]{
		{ObjectMeta: metav1.ObjectMeta{Name: "m"},
			Webhooks: []admissionv1.MutatingWebhook{{Name: "gone", ClientConfig: service("none")}}},
		{ObjectMeta: metav1.ObjectMeta{Name: "a"},
			Webhooks: []admissionv1.MutatingWebhook{{Name: "gone", ClientConfig: service("none")}}},
	}
	check(t, s,
		Failing{"MutatingWebhookConfiguration", "a", []string{"gone"}, "ns/none", "no endpoint"},
		Failing{"MutatingWebhookConfiguration", "m", []string{"gone"}, "ns/none", "no endpoint"},
		Failing{"ValidatingWebhookConfiguration", "v", []string{"down", "by default"}, "ns/down", "no endpoint"},
		Failing{"ValidatingWebhookConfiguration", "v", []string{"other port"}, "ns/up", "no endpoint"})
}

// TestDefinitions: a webhook that converts is needed by kinds with more than one version only.
func TestDefinitions(t *testing.T) {
	definition := func(
		name, to string, strategy apiextensionsv1.ConversionStrategyType, versions int,
	) *apiextensionsv1.CustomResourceDefinition {
		d := &apiextensionsv1.CustomResourceDefinition{ObjectMeta: metav1.ObjectMeta{Name: name}}
		d.Spec.Versions = make([]apiextensionsv1.CustomResourceDefinitionVersion, versions)
		d.Spec.Conversion = &apiextensionsv1.CustomResourceConversion{Strategy: strategy,
			Webhook: &apiextensionsv1.WebhookConversion{
				ClientConfig: &apiextensionsv1.WebhookClientConfig{
					Service: &apiextensionsv1.ServiceReference{Namespace: "ns", Name: to}}}}
		return d
	}
	s := sources()
	s.Definitions = listed[*apiextensionsv1.CustomResourceDefinition]{
		definition("up", "up", apiextensionsv1.WebhookConverter, 2),
		definition("down", "down", apiextensionsv1.WebhookConverter, 2),
		definition("one", "down", apiextensionsv1.WebhookConverter, 1),
		definition("none", "down", apiextensionsv1.NoneConverter, 2),
		{ObjectMeta: metav1.ObjectMeta{Name: "bare"}},
	}
	check(t, s, Failing{"CustomResourceDefinition", "down", nil, "ns/down", "no endpoint"})
}

// TestAPIServices: an extension API server is judged by the leader's finding.
func TestAPIServices(t *testing.T) {
	extension := func(name string, is apiregistrationv1.ConditionStatus) *apiregistrationv1.APIService {
		return &apiregistrationv1.APIService{ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec: apiregistrationv1.APIServiceSpec{
				Service: &apiregistrationv1.ServiceReference{Namespace: "ns", Name: "s"}},
			Status: apiregistrationv1.APIServiceStatus{
				Conditions: []apiregistrationv1.APIServiceCondition{
					{Type: apiregistrationv1.Available, Status: is, Message: "it says no"}}}}
	}
	own, fresh := extension("own", apiregistrationv1.ConditionFalse),
		extension("fresh", apiregistrationv1.ConditionFalse)
	own.Spec.Service, fresh.Status.Conditions = nil, nil
	s := sources()
	s.APIServices = listed[*apiregistrationv1.APIService]{extension("up", apiregistrationv1.ConditionTrue),
		extension("down", apiregistrationv1.ConditionFalse), own, fresh}
	check(t, s, Failing{"APIService", "down", nil, "ns/s", "it says no"})
}
