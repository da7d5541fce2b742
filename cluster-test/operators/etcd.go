package main

import (
	"context"
	"fmt"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

const etcdImage = "docker.io/library/etcd:debian"

// etcd is Debian's, which has no manifests: those here are after its documentation.
var etcd = program{
	name: "etcd", version: "3.4.23 (Debian 12)",
	scenario: "three members of a StatefulSet find each other by name; a key that is written through the Service is on each member, with those of all rounds",
	images: []workshop.Image{{Name: etcdImage, Foreign: func(context.Context) (images.Foreign, error) {
		return images.Foreign{Packages: []string{"etcd-server", "etcd-client"}, Config: v1.Config{User: "65532:65532", Env: []string{"ETCDCTL_API=3"}}}, nil
	}}},
	namespaces: []string{"etcd"},
	install: func(ctx context.Context, s *site) error {
		return s.apply(ctx, etcdManifests)
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.until(ctx, "the key", func(ctx context.Context) error {
			_, err := s.etcdctl(ctx, 0, "--endpoints=etcd-client:2379", "put", "rounds/"+string(r), string(r))
			return err
		}); err != nil {
			return err
		}
		return s.until(ctx, "the keys on each member", func(ctx context.Context) error {
			for member := range 3 {
				keys, err := s.etcdctl(ctx, member, "get", "--prefix", "--print-value-only", "rounds/")
				if err != nil {
					return err
				}
				if want := strings.Join(r.past(), "\n"); keys != want {
					return fmt.Errorf("etcd-%d has %q, want %q", member, keys, want)
				}
			}
			return nil
		})
	},
}

// etcdctl runs etcdctl in a member's pod.
func (s *site) etcdctl(ctx context.Context, member int, args ...string) (string, error) {
	return s.kubectl(ctx, append([]string{"exec", "-n", "etcd", fmt.Sprint("etcd-", member), "--", "etcdctl"}, args...)...)
}

const etcdManifests = `
apiVersion: v1
kind: Namespace
metadata: {name: etcd}
---
apiVersion: v1
kind: Service
metadata: {name: etcd, namespace: etcd}
spec: {clusterIP: None, publishNotReadyAddresses: true, selector: {app: etcd}, ports: [{name: peer, port: 2380}]}
---
apiVersion: v1
kind: Service
metadata: {name: etcd-client, namespace: etcd}
spec: {selector: {app: etcd}, ports: [{name: client, port: 2379}]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: etcd, namespace: etcd}
spec: {maxUnavailable: 1, selector: {matchLabels: {app: etcd}}}
---
apiVersion: apps/v1
kind: StatefulSet
metadata: {name: etcd, namespace: etcd}
spec:
  replicas: 3
  serviceName: etcd
  podManagementPolicy: Parallel
  selector: {matchLabels: {app: etcd}}
  template:
    metadata: {labels: {app: etcd}}
    spec:
      securityContext: {runAsUser: 65532, runAsGroup: 65532, fsGroup: 65532}
      containers:
      - name: etcd
        image: ` + etcdImage + `
        command: [etcd]
        env:
        - {name: ETCD_NAME, valueFrom: {fieldRef: {fieldPath: metadata.name}}}
        - {name: ETCD_DATA_DIR, value: /data/etcd}
        - {name: ETCD_LISTEN_PEER_URLS, value: "http://0.0.0.0:2380"}
        - {name: ETCD_LISTEN_CLIENT_URLS, value: "http://0.0.0.0:2379"}
        - {name: ETCD_INITIAL_ADVERTISE_PEER_URLS, value: "http://$(ETCD_NAME).etcd:2380"}
        - {name: ETCD_ADVERTISE_CLIENT_URLS, value: "http://$(ETCD_NAME).etcd:2379"}
        - {name: ETCD_INITIAL_CLUSTER, value: "etcd-0=http://etcd-0.etcd:2380,etcd-1=http://etcd-1.etcd:2380,etcd-2=http://etcd-2.etcd:2380"}
        readinessProbe: {httpGet: {path: /health, port: 2379}, periodSeconds: 2, timeoutSeconds: 2}
        volumeMounts: [{name: data, mountPath: /data}]
  volumeClaimTemplates:
  - metadata: {name: data}
    spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 200Mi}}}
`
