package services

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/apiserver/allocator"
)

// repairEvery is the pause between two rounds of repair.
const repairEvery = 3 * time.Minute

// Repair keeps the reservations in line with the Services that exist, until ctx ends. It is leader
// work: what one leader has seen, the next looks at anew.
func Repair(ctx context.Context, client kubernetes.Interface, addresses *allocator.Pool[netip.Addr], ports *allocator.Pool[int32], logger *slog.Logger) {
	ips := allocator.NewRepair(addresses, 0, nil)
	nodePorts := allocator.NewRepair(ports, 0, nil)
	for {
		if err := repairOnce(ctx, client, ips, nodePorts, logger); err != nil && ctx.Err() == nil {
			logger.Warn("repairing service addresses and node ports; trying again", "in", repairEvery, "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(repairEvery):
		}
	}
}

func repairOnce(ctx context.Context, client kubernetes.Interface, ips *allocator.Repair[netip.Addr], ports *allocator.Repair[int32], logger *slog.Logger) error {
	a, err := ips.Once(ctx, owners(client, addressesOf))
	if err != nil {
		return fmt.Errorf("service addresses: %w", err)
	}
	tell(logger, "service address", a)
	p, err := ports.Once(ctx, owners(client, portsOf))
	if err != nil {
		return fmt.Errorf("node ports: %w", err)
	}
	tell(logger, "node port", p)
	return nil
}

// owners reads, newest state, which Service has which values.
func owners[T comparable](client kubernetes.Interface, values func(*corev1.Service) []T) func(context.Context) (allocator.Owners[T], error) {
	return func(ctx context.Context) (allocator.Owners[T], error) {
		list, err := client.CoreV1().Services(metav1.NamespaceAll).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		out := allocator.Owners[T]{}
		for i := range list.Items {
			s := &list.Items[i]
			for _, v := range values(s) {
				out[v] = append(out[v], owner(s))
			}
		}
		return out, nil
	}
}

// tell logs what a person should know or do.
func tell[T comparable](logger *slog.Logger, noun string, r allocator.Report[T]) {
	for _, v := range r.Freed {
		logger.Info("freed a "+noun+" that was reserved for a Service that does not exist", "value", v)
	}
	for v, services := range r.Conflicts {
		logger.Error("a "+noun+" belongs to more than one Service; delete and create again all but one of them", "value", v, "services", services)
	}
	for v, services := range r.OutOfRange {
		logger.Error("a "+noun+" is outside of the configured range; create the Service again", "value", v, "services", services)
	}
}
