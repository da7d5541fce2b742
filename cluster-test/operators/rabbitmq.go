package main

import (
	"context"
	_ "embed"
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/barque/barque/cluster-test/images"
	"github.com/barque/barque/cluster-test/operators/workshop"
)

const rabbitMQNamespace = "rabbitmq"

//go:embed manifests/rabbitmq.yaml
var rabbitMQManifests string

// rabbitMQ is Debian's, which has no manifests: those here are after its documentation.
var rabbitMQ = program{
	name: "RabbitMQ", version: "3.10.8 (Debian 12)",
	scenario: "three servers find each other by the Endpoints of a headless Service; a quorum queue keeps the messages of all rounds",
	images: []workshop.Image{workshop.Debian("docker.io/library/rabbitmq:debian", images.Foreign{
		Shell: true,
		Packages: strings.Fields(
			"rabbitmq-server python3 python3-minimal erlang-asn1 erlang-base erlang-crypto erlang-eldap erlang-inets erlang-mnesia " +
				"erlang-os-mon erlang-parsetools erlang-public-key erlang-runtime-tools erlang-snmp erlang-ssl erlang-syntax-tools erlang-tools erlang-xmerl"),
		Users:  []string{"rabbitmq:x:999:999:RabbitMQ:/home/rabbitmq:/bin/sh"},
		Dirs:   []string{"etc/rabbitmq", "home/rabbitmq"},
		Config: v1.Config{User: "999:999", Env: []string{"HOME=/home/rabbitmq", "LANG=C.UTF-8"}},
	})},
	namespaces: []string{rabbitMQNamespace},
	install: func(ctx context.Context, s *site) error {
		if err := s.apply(ctx, rabbitMQManifests); err != nil {
			return err
		}
		if err := s.wants(ctx, "3", "get", "statefulset", "-n", rabbitMQNamespace, "rabbitmq", "-o",
			"jsonpath={.status.readyReplicas}"); err != nil {
			return err
		}
		return s.succeeds(ctx,
			rabbitMQAdmin(0, "declare", "queue", "name=rounds", "durable=true", "queue_type=quorum")...)
	},
	fact: func(ctx context.Context, s *site, r round) error {
		if err := s.until(ctx, "a cluster of three", func(ctx context.Context) error {
			nodes, err := s.kubectl(ctx, rabbitMQAdmin(1, "list", "nodes", "name", "running")...)
			if running := strings.Count(nodes, `"running":true`); err == nil && running != 3 {
				err = fmt.Errorf("%d servers run: %s", running, nodes)
			}
			return err
		}); err != nil {
			return err
		}
		if err := s.succeeds(ctx,
			rabbitMQAdmin(2, "publish", "routing_key=rounds", "payload="+string(r),
				`properties={"delivery_mode":2}`)...); err != nil {
			return err
		}
		return s.until(ctx, "the messages", func(ctx context.Context) error {
			out, err := s.kubectl(ctx,
				rabbitMQAdmin(0, "get", "queue=rounds", "count=100", "ackmode=ack_requeue_true")...)
			if err != nil {
				return err
			}
			var messages []struct{ Payload string }
			if err := json.Unmarshal([]byte(out), &messages); err != nil {
				return fmt.Errorf("%w: %s", err, out)
			}
			var has []string
			for _, m := range messages { // one whose confirmation was lost is there twice
				has = append(has, m.Payload)
			}
			for _, want := range r.past() {
				if !slices.Contains(has, want) {
					return fmt.Errorf("the queue has %q and lacks %s", has, want)
				}
			}
			return nil
		})
	},
}

// rabbitMQAdmin are the arguments of kubectl that run rabbitmqadmin in a pod.
func rabbitMQAdmin(pod int, args ...string) []string {
	return append(
		[]string{"exec", "-n", rabbitMQNamespace, fmt.Sprint("rabbitmq-", pod), "--", "rabbitmqadmin", "-f",
			"raw_json"}, args...)
}
