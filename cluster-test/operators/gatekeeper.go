package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/barque/barque/cluster-test/operators/workshop"
)

var gatekeeper = program{
	name: "Gatekeeper", module: "github.com/open-policy-agent/gatekeeper/v3", version: "v3.23.1",
	scenario: "a new constraint refuses a namespace without a label, and admits one with it",
	images: []workshop.Image{
		workshop.Simple("docker.io/openpolicyagent/gatekeeper:v3.23.1", "/manager", ".", "65532:65532"),
	},
	namespaces: []string{"gatekeeper-system"},
	install: func(ctx context.Context, s *site) error {
		if err := s.shipped(ctx, "deploy/gatekeeper.yaml"); err != nil {
			return err
		}
		if err := s.ready(ctx, start); err != nil {
			return err
		}
		// Its webhook answers once it has made its own certificate.
		return s.until(ctx, "apply the template", func(ctx context.Context) error {
			return s.shipped(ctx, "demo/basic/templates/k8srequiredlabels_template.yaml")
		})
	},
	fact: func(ctx context.Context, s *site, r round) error {
		// Other namespaces than the scenario's do not have to meet it.
		if err := s.admitted(ctx, fmt.Sprintf(`
apiVersion: constraints.gatekeeper.sh/v1beta1
kind: K8sRequiredLabels
metadata: {name: owned-%[1]s}
spec:
  match:
    kinds: [{apiGroups: [""], kinds: [Namespace]}]
    labelSelector: {matchLabels: {round: %[1]s}}
  parameters: {labels: [owner]}
`, r)); err != nil {
			return err
		}
		namespace := func(name, labels string) string {
			return fmt.Sprintf("apiVersion: v1\nkind: Namespace\nmetadata: {name: %s-%s, labels: {round: %[2]s%s}}",
				name, r, labels)
		}
		if err := s.until(ctx, "a refusal", func(ctx context.Context) error {
			result := s.KubectlResult(ctx, namespace("nobodys", ""), "apply", "--dry-run=server", "-f", "-")
			if result.Error == nil {
				return errors.New("a namespace without an owner is admitted")
			}
			if !strings.Contains(result.Err,
				`denied the request: [owned-`+string(r)+`] you must provide labels: {"owner"}`) {
				return result.Error
			}
			return nil
		}); err != nil {
			return err
		}
		return s.apply(ctx, namespace("somebodys", ", owner: me"))
	},
}
