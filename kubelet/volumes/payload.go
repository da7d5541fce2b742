package volumes

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"time"

	v1 "k8s.io/api/core/v1"

	"github.com/barque/barque/kubelet/podinfo"
	"github.com/barque/barque/kubelet/volumes/atomicdir"
	"github.com/barque/barque/kubelet/volumes/fsgroup"
)

const defaultMode = 0o644

// payload collects the files of a volume that is made of API data. next is when they must be
// checked again without a change: a token must be renewed.
func (m apiData) payload(
	ctx context.Context, pod *v1.Pod, name string, volume *v1.VolumeSource,
) (p atomicdir.Payload, next time.Time, err error) {
	p = atomicdir.Payload{}
	switch {
	case volume.ConfigMap != nil:
		s := volume.ConfigMap
		err = m.configMap(ctx, pod, s.Name, s.Items, s.Optional, modeOf(s.DefaultMode), p)
	case volume.Secret != nil:
		s := volume.Secret
		err = m.secret(ctx, pod, s.SecretName, s.Items, s.Optional, modeOf(s.DefaultMode), p)
	case volume.DownwardAPI != nil:
		err = m.downward(pod, volume.DownwardAPI.Items, modeOf(volume.DownwardAPI.DefaultMode), p)
	case volume.Projected != nil:
		return m.projected(ctx, pod, name, volume.Projected)
	}
	return p, time.Time{}, err
}

func (m apiData) projected(
	ctx context.Context, pod *v1.Pod, volume string, source *v1.ProjectedVolumeSource,
) (atomicdir.Payload, time.Time, error) {
	p := atomicdir.Payload{}
	var next time.Time
	mode := modeOf(source.DefaultMode)
	for i := range source.Sources {
		var err error
		switch s := &source.Sources[i]; {
		case s.ConfigMap != nil:
			err = m.configMap(ctx, pod, s.ConfigMap.Name, s.ConfigMap.Items, s.ConfigMap.Optional, mode, p)
		case s.Secret != nil:
			err = m.secret(ctx, pod, s.Secret.Name, s.Secret.Items, s.Secret.Optional, mode, p)
		case s.DownwardAPI != nil:
			err = m.downward(pod, s.DownwardAPI.Items, mode, p)
		case s.ServiceAccountToken != nil:
			var renew time.Time
			renew, err = m.token(ctx, pod, s.ServiceAccountToken, mode, p)
			next = sooner(next, renew)
		case s.ClusterTrustBundle != nil:
			err = m.trustBundle(ctx, pod, s.ClusterTrustBundle, mode, p)
		case s.PodCertificate != nil:
			var again time.Time
			again, err = m.certificate(ctx, pod, volume, i, s.PodCertificate, mode, p)
			next = sooner(next, again)
		default:
			err = fmt.Errorf("projected source %d is of a kind that this node does not know", i)
		}
		if err != nil {
			return nil, time.Time{}, err
		}
	}
	return p, next, nil
}

func (m apiData) configMap(
	ctx context.Context, pod *v1.Pod, name string, items []v1.KeyToPath, optional *bool, mode fs.FileMode,
	into atomicdir.Payload,
) error {
	cm, err := m.objects.ConfigMap(ctx, pod, name)
	if IsNotFound(err) && isTrue(optional) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("configmap %q: %w", name, err)
	}
	data := make(map[string][]byte, len(cm.Data)+len(cm.BinaryData))
	for key, value := range cm.Data {
		data[key] = []byte(value)
	}
	for key, value := range cm.BinaryData {
		data[key] = value
	}
	if err := pick(data, items, isTrue(optional), mode, into); err != nil {
		return fmt.Errorf("configmap %q %w", name, err)
	}
	return nil
}

func (m apiData) secret(
	ctx context.Context, pod *v1.Pod, name string, items []v1.KeyToPath, optional *bool, mode fs.FileMode,
	into atomicdir.Payload,
) error {
	secret, err := m.objects.Secret(ctx, pod, name)
	if IsNotFound(err) && isTrue(optional) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("secret %q: %w", name, err)
	}
	if err := pick(secret.Data, items, isTrue(optional), mode, into); err != nil {
		return fmt.Errorf("secret %q %w", name, err)
	}
	return nil
}

// pick takes all keys, or those of items, with their paths.
func pick(data map[string][]byte, items []v1.KeyToPath, optional bool, mode fs.FileMode, into atomicdir.Payload) error {
	if len(items) == 0 {
		for key, value := range data {
			into[key] = atomicdir.File{Data: value, Mode: mode}
		}
		return nil
	}
	for _, item := range items {
		value, ok := data[item.Key]
		if !ok {
			if optional {
				continue
			}
			return fmt.Errorf("has no key %q", item.Key)
		}
		m := mode
		if item.Mode != nil {
			m = fs.FileMode(*item.Mode)
		}
		into[item.Path] = atomicdir.File{Data: value, Mode: m}
	}
	return nil
}

func (m apiData) downward(
	pod *v1.Pod, items []v1.DownwardAPIVolumeFile, mode fs.FileMode, into atomicdir.Payload,
) error {
	for _, item := range items {
		var value string
		var err error
		switch {
		case item.FieldRef != nil:
			value, err = podinfo.Field(pod, item.FieldRef.FieldPath)
		case item.ResourceFieldRef != nil:
			value, err = podinfo.Resource(pod, item.ResourceFieldRef, item.ResourceFieldRef.ContainerName,
				m.allocatable())
		}
		if err != nil {
			return fmt.Errorf("downward API file %q: %w", item.Path, err)
		}
		fileMode := mode
		if item.Mode != nil {
			fileMode = fs.FileMode(*item.Mode)
		}
		into[item.Path] = atomicdir.File{Data: []byte(value), Mode: fileMode}
	}
	return nil
}

func (m apiData) token(
	ctx context.Context, pod *v1.Pod, source *v1.ServiceAccountTokenProjection, mode fs.FileMode,
	into atomicdir.Payload,
) (time.Time, error) {
	seconds := int64(3600)
	if source.ExpirationSeconds != nil {
		seconds = *source.ExpirationSeconds
	}
	token, renew, err := m.tokens.Get(ctx, pod, source.Audience, seconds)
	if err != nil {
		return time.Time{}, fmt.Errorf("token of service account %q: %w", pod.Spec.ServiceAccountName, err)
	}
	into[source.Path] = forPod(pod, []byte(token), mode)
	return renew, nil
}

// forPod is a file that only the pod's processes may read: its only user where all containers share
// one, and its group where it has one. Without either it has the given mode.
func forPod(pod *v1.Pod, data []byte, mode fs.FileMode) atomicdir.File {
	file := atomicdir.File{Data: data, Mode: mode, Owner: onlyUser(pod)}
	if file.Owner != nil || fsgroup.Of(pod) != nil {
		file.Mode = 0o600
	}
	return file
}

// trustBundle takes the trust anchors of a bundle, or of the selected ones. A missing optional
// bundle gives an empty file.
func (m apiData) trustBundle(
	ctx context.Context, pod *v1.Pod, source *v1.ClusterTrustBundleProjection, mode fs.FileMode, into atomicdir.Payload,
) error {
	var anchors []byte
	var err error
	switch {
	case source.Name != nil:
		if anchors, err = m.bundles.Named(ctx, pod, *source.Name); err != nil {
			err = fmt.Errorf("clustertrustbundle %q: %w", *source.Name, err)
		}
	case source.SignerName != nil:
		if anchors, err = m.bundles.Signed(ctx, pod, *source.SignerName, source.LabelSelector); err != nil {
			err = fmt.Errorf("clustertrustbundles of signer %q: %w", *source.SignerName, err)
		}
	default:
		err = errors.New("ClusterTrustBundle projection requires either name or signerName to be set")
	}
	missing := IsNotFound(err) || errors.Is(err, ErrNoBundle)
	if err != nil && !(missing && isTrue(source.Optional)) {
		return err
	}
	into[source.Path] = forPod(pod, anchors, mode)
	return nil
}

// certificate takes a certificate and its key, in one file or in two.
func (m apiData) certificate(
	ctx context.Context, pod *v1.Pod, volume string, index int, source *v1.PodCertificateProjection, mode fs.FileMode,
	into atomicdir.Payload,
) (again time.Time, err error) {
	key, chain, again, err := m.certificates.Get(ctx, pod, volume, index, source)
	if err != nil {
		return time.Time{}, fmt.Errorf("certificate by signer %q: %w", source.SignerName, err)
	}
	for path, data := range map[string][]byte{
		source.CredentialBundlePath: slices.Concat(key, chain), source.KeyPath: key, source.CertificateChainPath: chain,
	} {
		if path != "" {
			into[path] = forPod(pod, data, mode)
		}
	}
	return again, nil
}

// onlyUser returns the runAsUser that all containers of a pod share, or nil.
func onlyUser(pod *v1.Pod) *int64 {
	var user *int64
	var byDefault *int64
	if sc := pod.Spec.SecurityContext; sc != nil {
		byDefault = sc.RunAsUser
	}
	for _, list := range [][]v1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			u := byDefault
			if sc := list[i].SecurityContext; sc != nil && sc.RunAsUser != nil {
				u = sc.RunAsUser
			}
			if u == nil || (user != nil && *u != *user) {
				return nil
			}
			user = u
		}
	}
	return user
}

func modeOf(mode *int32) fs.FileMode {
	if mode == nil {
		return defaultMode
	}
	return fs.FileMode(*mode)
}

func isTrue(b *bool) bool { return b != nil && *b }
