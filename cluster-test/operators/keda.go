package main

import (
	"context"
	"fmt"

	"github.com/barque/barque/cluster-test/operators/workshop"
)

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
		return s.admitted(ctx, namespaceNamed("scaled"), webServers("scaled", "load", 1),
			webServers("scaled", "follower", 1), kedaFollows)
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.succeeds(ctx, "scale", "-n", "scaled", "deployment/load",
			fmt.Sprint("--replicas=", r.replicas())); err != nil {
			return err
		}
		return s.wants(ctx, fmt.Sprintf("%[1]d %[1]d", r.replicas()), "get", "deployment", "-n", "scaled", "follower",
			"-o", "jsonpath={.spec.replicas} {.status.readyReplicas}")
	},
}

// kedaImage is one of the authors' images, under the tag that their kustomization has.
func kedaImage(name, path, pkg string) workshop.Image {
	return workshop.Linked(workshop.Simple("ghcr.io/kedacore/"+name+":main", path, pkg, "65532:65532"),
		"-X=github.com/kedacore/keda/v2/version.Version="+kedaVersion)
}

// kedaFollows scales at once in both directions.
const kedaFollows = `
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
