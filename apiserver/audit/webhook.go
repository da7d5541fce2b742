package audit

import (
	"context"
	"fmt"
	"time"

	"k8s.io/apimachinery/pkg/runtime/schema"
	auditinternal "k8s.io/apiserver/pkg/apis/audit"
	"k8s.io/apiserver/pkg/apis/audit/install"
	"k8s.io/apiserver/pkg/audit"
	"k8s.io/apiserver/pkg/util/webhook"
	"k8s.io/client-go/rest"

	"github.com/barque/barque/apiserver/configfile"
)

// hook is the target of the webhook sink: events in lists, by POST.
type hook struct {
	client *webhook.GenericWebhook
}

func newHook(kubeconfig string, version schema.GroupVersion, initialBackoff time.Duration) (*hook, error) {
	config, err := configfile.Webhook(kubeconfig)
	if err != nil {
		return nil, fmt.Errorf("%s %w", webhookFlag, err)
	}
	install.Install(audit.Scheme)
	client, err := webhook.NewGenericWebhook(audit.Scheme, audit.Codecs, config, []schema.GroupVersion{version},
		webhook.DefaultRetryBackoffWithInitialDelay(initialBackoff))
	if err != nil {
		return nil, fmt.Errorf("%s %s: %w", webhookFlag, kubeconfig, err)
	}
	// As upstream: any error may be over at the next try, and events that are given up are lost.
	client.ShouldRetry = func(err error) bool { return err != nil }
	return &hook{client}, nil
}

// send implements target.
func (h *hook) send(ctx context.Context, events []*auditinternal.Event) error {
	var list auditinternal.EventList
	for _, e := range events {
		list.Items = append(list.Items, *e)
	}
	return h.client.WithExponentialBackoff(ctx, func() rest.Result {
		return h.client.RestClient.Post().Body(&list).Do(ctx)
	}).Error()
}
