package doctor

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/utils/ptr"

	"github.com/barque/barque/adminapi/remote"
	"github.com/barque/barque/clusterstatus"
)

// webhook is a webhook whose unavailability makes requests fail.
type webhook struct {
	kind, configuration, name string
	service                   *admissionv1.ServiceReference
}

// blockedBy finds the webhook configurations that refuse requests because their Service has no
// endpoint. It skips webhooks with a URL, which may be reachable from servers only.
func blockedBy(ctx context.Context, config *rest.Config, each time.Duration) ([]clusterstatus.Warning, error) {
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeoutCause(ctx, each, &remote.NoAnswerError{Within: each})
	defer cancel()
	hooks, err := webhooks(ctx, client)
	if err != nil {
		return nil, remote.Because(ctx, err)
	}
	var found []clusterstatus.Warning
	for _, h := range hooks {
		ready, err := hasEndpoint(ctx, client, h.service)
		if err != nil {
			return found, remote.Because(ctx, err)
		}
		if ready {
			continue
		}
		found = append(found, clusterstatus.Warning{
			Severity: clusterstatus.Attention,
			Text: fmt.Sprintf("the %s %q refuses the requests that its webhook %s selects: the Service %s/%s has no endpoint that is ready",
				h.kind, h.configuration, h.name, h.service.Namespace, h.service.Name),
			Mend: fmt.Sprintf("make its pods ready, or: barque kubectl delete %s %s", strings.ToLower(h.kind), h.configuration),
		})
	}
	return found, nil
}

// webhooks returns the webhooks with a Service and the failure policy Fail.
func webhooks(ctx context.Context, client kubernetes.Interface) ([]webhook, error) {
	var all []webhook
	add := func(kind, configuration, name string, failure *admissionv1.FailurePolicyType, c *admissionv1.WebhookClientConfig) {
		if ptr.Deref(failure, admissionv1.Fail) == admissionv1.Fail && c.Service != nil {
			all = append(all, webhook{kind, configuration, name, c.Service})
		}
	}
	validating, err := client.AdmissionregistrationV1().ValidatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) { // an older server does not have them
		return nil, err
	}
	if err == nil {
		for _, c := range validating.Items {
			for i := range c.Webhooks {
				add("ValidatingWebhookConfiguration", c.Name, c.Webhooks[i].Name, c.Webhooks[i].FailurePolicy, &c.Webhooks[i].ClientConfig)
			}
		}
	}
	mutating, err := client.AdmissionregistrationV1().MutatingWebhookConfigurations().List(ctx, metav1.ListOptions{})
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, err
	}
	if err == nil {
		for _, c := range mutating.Items {
			for i := range c.Webhooks {
				add("MutatingWebhookConfiguration", c.Name, c.Webhooks[i].Name, c.Webhooks[i].FailurePolicy, &c.Webhooks[i].ClientConfig)
			}
		}
	}
	return all, nil
}

func hasEndpoint(ctx context.Context, client kubernetes.Interface, service *admissionv1.ServiceReference) (bool, error) {
	if service.Namespace == metav1.NamespaceDefault && service.Name == "kubernetes" {
		return true, nil // the server itself
	}
	list, err := client.DiscoveryV1().EndpointSlices(service.Namespace).List(ctx, metav1.ListOptions{
		LabelSelector: labels.Set{discoveryv1.LabelServiceName: service.Name}.String(),
	})
	if err != nil {
		return false, err
	}
	return slices.ContainsFunc(list.Items, func(s discoveryv1.EndpointSlice) bool {
		return slices.ContainsFunc(s.Endpoints, func(e discoveryv1.Endpoint) bool { return ptr.Deref(e.Conditions.Ready, true) })
	}), nil
}
