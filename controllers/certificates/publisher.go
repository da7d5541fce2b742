package certificates

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/client-go/kubernetes"

	"github.com/barque/barque/controllers/runtime"
)

// ServingSigner is the signer whose bundle API servers are verified with.
const ServingSigner = "kubernetes.io/kube-apiserver-serving"

// NewPublisher makes the controller that keeps one ClusterTrustBundle of the signer ServingSigner,
// with the cluster's CA. It deletes the signer's other bundles. It requests its informer from the
// factory.
func NewPublisher(cfg Config) (*Controller, error) {
	if cfg.CA == nil || !bytes.Contains(cfg.CA.PEM(), []byte("-----BEGIN CERTIFICATE-----")) {
		return nil, errors.New("controllers/certificates: CA holds no PEM certificate")
	}
	bundles := cfg.Informers.Certificates().V1().ClusterTrustBundles()
	informer, list := bundles.Informer(), bundles.Lister()
	all := runtime.Key{Name: ServingSigner}
	return &Controller{run: func(ctx context.Context, client kubernetes.Interface) error {
		var loop *runtime.Loop
		loop = runtime.NewLoop("trustbundle", 1, cfg.Logger,
			func(ctx context.Context, key runtime.Key) (time.Duration, error) {
				known, err := list.List(labels.Everything())
				if err != nil {
					return 0, err
				}
				version, err := publish(ctx, client, decideBundles(known, string(cfg.CA.PEM())), cfg.Logger)
				if version != "" {
					loop.Writes().Wrote(key, informer, version)
				}
				return 0, err
			})
		runtime.Watch(loop, informer, func(old, now *certificatesv1.ClusterTrustBundle) []runtime.Key {
			if now == nil {
				now = old
			}
			if now.Spec.SignerName != ServingSigner {
				return nil
			}
			return []runtime.Key{all}
		})
		var following sync.WaitGroup
		defer following.Wait()
		changed := cfg.CA.Changed() // before the first look at it
		loop.Add(all)
		following.Go(func() { // ends with ctx
			for {
				select {
				case <-ctx.Done():
					return
				case <-changed:
				}
				changed = cfg.CA.Changed()
				loop.Add(all)
			}
		})
		return loop.Run(ctx)
	}}, nil
}

// bundles has the changes that leave one bundle of the signer.
type bundles struct {
	create, update *certificatesv1.ClusterTrustBundle
	delete         []*certificatesv1.ClusterTrustBundle
}

// decideBundles compares the bundles that there are with the CA. The new one is there before the
// old one goes.
func decideBundles(known []*certificatesv1.ClusterTrustBundle, ca string) (plan bundles) {
	name := bundleName(ca)
	plan.create = &certificatesv1.ClusterTrustBundle{
		ObjectMeta: metav1.ObjectMeta{Name: name},
		Spec:       certificatesv1.ClusterTrustBundleSpec{SignerName: ServingSigner, TrustBundle: ca},
	}
	for _, b := range known {
		switch {
		case b.Spec.SignerName != ServingSigner || b.DeletionTimestamp != nil:
			// One that goes is made anew when it is gone.
			if b.Name == name {
				plan.create = nil
			}
		case b.Name != name:
			plan.delete = append(plan.delete, b)
		case b.Spec.TrustBundle != ca:
			plan.update, plan.create = b.DeepCopy(), nil
			plan.update.Spec.TrustBundle = ca
		default:
			plan.create = nil
		}
	}
	return plan
}

// bundleName is the name as in upstream's publisher: the signer, and the beginning of the content's
// digest.
func bundleName(ca string) string {
	sum := sha256.Sum256([]byte(ca))
	return fmt.Sprintf("%s:%x", strings.ReplaceAll(ServingSigner, "/", ":"), sum[:12])
}

// publish carries out a plan. It returns the version of its last write.
func publish(
	ctx context.Context, client kubernetes.Interface, plan bundles, logger *slog.Logger,
) (version string, err error) {
	api := client.CertificatesV1().ClusterTrustBundles()
	var written *certificatesv1.ClusterTrustBundle
	switch {
	case plan.create != nil:
		if written, err = api.Create(ctx, plan.create, metav1.CreateOptions{}); apierrors.IsAlreadyExists(err) {
			return "", nil // the informer will show it
		}
	case plan.update != nil:
		written, err = api.Update(ctx, plan.update, metav1.UpdateOptions{})
	}
	if err != nil {
		return "", fmt.Errorf("publishing the cluster's CA as a ClusterTrustBundle: %w", err)
	}
	if written != nil {
		version = written.ResourceVersion
	}
	var errs []error
	for _, b := range plan.delete {
		err := api.Delete(ctx, b.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &b.UID}})
		if err != nil && !apierrors.IsNotFound(err) {
			errs = append(errs,
				fmt.Errorf("deleting the ClusterTrustBundle %s, which is not the cluster's CA's: %w", b.Name, err))
		} else if logger != nil {
			logger.Info("a trust bundle that is not the cluster's CA's was deleted", "bundle", b.Name)
		}
	}
	return version, errors.Join(errs...)
}
