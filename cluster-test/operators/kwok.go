package main

import (
	"context"
	"fmt"
	"strings"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	clustertest "github.com/barque/barque/cluster-test"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

const (
	kwokNodes     = 250
	kwokNamespace = "kwok-crowd"
)

// kwokPods are the replicas of each round.
var kwokPods = map[round]int{installed: 500, killed: 600, restarted: 500}

var kwok = program{
	name: "KWOK", module: "sigs.k8s.io/kwok", version: "v0.8.0",
	scenario: "250 nodes of its own become Ready, and a Deployment of 500 to 600 pods runs on them",
	images: []workshop.Image{
		workshop.Shelled(workshop.Simple("registry.k8s.io/kwok/kwok", "/usr/local/bin/kwok", "cmd/kwok", ""))},
	namespaces: []string{"kube-system"},
	install: func(ctx context.Context, s *site) error {
		if err := s.kustomized(ctx, "kustomize/kwok"); err != nil {
			return err
		}
		return s.kustomized(ctx, "kustomize/stage/fast")
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.apply(ctx, kwokCrowd(kwokPods[r])); err != nil {
			return err
		}
		return s.until(ctx, "nodes and pods", func(ctx context.Context) error {
			nodes, err := s.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{LabelSelector: "type=kwok"})
			if err != nil {
				return err
			}
			ready := 0
			for _, n := range nodes.Items {
				if status, _ := clustertest.NodeReady(&n); status == corev1.ConditionTrue {
					ready++
				}
			}
			pods, err := s.Client.CoreV1().Pods(kwokNamespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			running := 0
			for _, p := range pods.Items {
				if clustertest.Ready(&p) && strings.HasPrefix(p.Spec.NodeName, "kwok-") {
					running++
				}
			}
			if ready != kwokNodes || running != kwokPods[r] || len(pods.Items) != running {
				return fmt.Errorf("%d of %d nodes are Ready, %d of %d pods run, there are %d",
					ready, kwokNodes, running, kwokPods[r], len(pods.Items))
			}
			return nil
		})
	},
	leave: func(ctx context.Context, s *site) error {
		if _, err := s.kubectl(ctx, "delete", "namespace", kwokNamespace, "--ignore-not-found"); err != nil {
			return err
		}
		_, err := s.kubectl(ctx, "delete", "nodes", "-l", "type=kwok")
		return err
	},
}

// kwokCrowd is the nodes, as KWOK's documentation has them, and pods for them.
func kwokCrowd(pods int) string {
	var b strings.Builder
	for i := range kwokNodes {
		fmt.Fprintf(&b, `
apiVersion: v1
kind: Node
metadata:
  name: kwok-%d
  annotations: {kwok.x-k8s.io/node: fake}
  labels: {type: kwok, kubernetes.io/hostname: kwok-%[1]d, kubernetes.io/os: linux, kubernetes.io/arch: amd64}
spec: {taints: [{effect: NoSchedule, key: kwok.x-k8s.io/node, value: fake}]}
status:
  allocatable: {cpu: "32", memory: 256Gi, pods: "110"}
  capacity: {cpu: "32", memory: 256Gi, pods: "110"}
---`, i)
	}
	fmt.Fprintf(&b, `
apiVersion: v1
kind: Namespace
metadata: {name: %s}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: crowd, namespace: %[1]s}
spec:
  replicas: %[2]d
  selector: {matchLabels: {app: crowd}}
  template:
    metadata: {labels: {app: crowd}}
    spec:
      nodeSelector: {type: kwok}
      tolerations: [{key: kwok.x-k8s.io/node, operator: Exists, effect: NoSchedule}]
      containers: [{name: c, image: fake}]
`, kwokNamespace, pods)
	return b.String()
}
