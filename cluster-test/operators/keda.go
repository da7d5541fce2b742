package main

import (
	"context"
	"fmt"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

// loads are the pods of the workload that each round scales by.
var loads = map[round]int{installed: 2, killed: 4, restarted: 3}

const kedaVersion = "v2.21.0"

var keda = program{
	name: "KEDA", module: "github.com/kedacore/keda/v2", version: kedaVersion,
	scenario: "a Deployment follows the number of pods of another workload, by a ScaledObject, its HPA and KEDA's external metrics",
	images: []workshop.Image{
		kedaImage("keda", "/keda", "cmd/operator"),
		kedaImage("keda-metrics-apiserver", "/keda-adapter", "cmd/adapter"),
		kedaImage("keda-admission-webhooks", "/keda-admission-webhooks", "cmd/webhooks"),
	},
	namespaces: []string{"keda", "scaled"},
	install: func(ctx context.Context, s *site) error {
		if err := s.kustomized(ctx, "config/default"); err != nil {
			return err
		}
		// Its webhook answers once the operator has made its certificate.
		return s.until(ctx, "apply the scenario", func(ctx context.Context) error {
			return s.apply(ctx, kedaScenario)
		})
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.until(ctx, "scale the load", func(ctx context.Context) error {
			_, err := s.kubectl(ctx, "scale", "-n", "scaled", "deployment/load", fmt.Sprint("--replicas=", loads[r]))
			return err
		}); err != nil {
			return err
		}
		return s.wants(ctx, fmt.Sprintf("%[1]d %[1]d", loads[r]), "get", "deployment", "-n", "scaled", "follower", "-o", "jsonpath={.spec.replicas} {.status.readyReplicas}")
	},
}

// kedaImage is one of the authors' images, under the tag that their kustomization has.
func kedaImage(name, path, pkg string) workshop.Image {
	i := workshop.Simple("ghcr.io/kedacore/"+name+":main", path, pkg, "65532:65532")
	i.Binaries[path] = workshop.Source{Pkg: pkg, Ldflags: "-X=github.com/kedacore/keda/v2/version.Version=" + kedaVersion}
	return i
}

// kedaScenario scales at once in both directions.
const kedaScenario = `
apiVersion: v1
kind: Namespace
metadata: {name: scaled}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: load, namespace: scaled}
spec:
  selector: {matchLabels: {app: load}}
  template:
    metadata: {labels: {app: load}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: nginx, image: "` + images.Nginx + `"}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: follower, namespace: scaled}
spec:
  selector: {matchLabels: {app: follower}}
  template:
    metadata: {labels: {app: follower}}
    spec: {terminationGracePeriodSeconds: 1, containers: [{name: nginx, image: "` + images.Nginx + `"}]}
---
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata: {name: follows, namespace: scaled}
spec:
  scaleTargetRef: {name: follower}
  minReplicaCount: 1
  maxReplicaCount: 6
  pollingInterval: 5
  advanced: {horizontalPodAutoscalerConfig: {behavior: {scaleDown: {stabilizationWindowSeconds: 0}}}}
  triggers:
  - {type: kubernetes-workload, metadata: {podSelector: app=load, value: "1"}}
`
