package csidriver

import (
	"context"
	"os"
	"path/filepath"
	"slices"

	csipb "github.com/container-storage-interface/spec/lib/go/csi"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// NodeGetInfo implements csipb.NodeServer.
func (d *Driver) NodeGetInfo(context.Context, *csipb.NodeGetInfoRequest) (*csipb.NodeGetInfoResponse, error) {
	info := &csipb.NodeGetInfoResponse{NodeId: d.config.Node, MaxVolumesPerNode: d.config.MaxVolumes}
	if d.config.Topology != nil {
		info.AccessibleTopology = &csipb.Topology{Segments: d.config.Topology}
	}
	return info, nil
}

// NodeGetCapabilities implements csipb.NodeServer.
func (d *Driver) NodeGetCapabilities(
	context.Context, *csipb.NodeGetCapabilitiesRequest,
) (*csipb.NodeGetCapabilitiesResponse, error) {
	answer := &csipb.NodeGetCapabilitiesResponse{}
	for _, c := range []csipb.NodeServiceCapability_RPC_Type{
		csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME, csipb.NodeServiceCapability_RPC_GET_VOLUME_STATS,
		csipb.NodeServiceCapability_RPC_EXPAND_VOLUME, csipb.NodeServiceCapability_RPC_SINGLE_NODE_MULTI_WRITER,
	} {
		if !slices.Contains(d.config.Lacks, c) {
			answer.Capabilities = append(answer.Capabilities, &csipb.NodeServiceCapability{
				Type: &csipb.NodeServiceCapability_Rpc{Rpc: &csipb.NodeServiceCapability_RPC{Type: c}},
			})
		}
	}
	return answer, nil
}

func (d *Driver) stages() bool {
	return !slices.Contains(d.config.Lacks, csipb.NodeServiceCapability_RPC_STAGE_UNSTAGE_VOLUME)
}

// find returns a volume that a request names, and checks the other values that the request
// must have.
func (d *Driver) find(id string, also ...string) (*volume, error) {
	for _, value := range append(also, id) {
		if value == "" {
			return nil, status.Error(codes.InvalidArgument, "the request lacks an ID, a path or a capability")
		}
	}
	if v := d.state.Volumes[id]; v != nil {
		return v, nil
	}
	return nil, status.Errorf(codes.NotFound, "there is no volume %s", id)
}

func given(c *csipb.VolumeCapability) string {
	if c == nil {
		return ""
	}
	return "a capability"
}

// NodeStageVolume implements csipb.NodeServer.
func (d *Driver) NodeStageVolume(
	_ context.Context, r *csipb.NodeStageVolumeRequest,
) (*csipb.NodeStageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.VolumeId, r.StagingTargetPath, given(r.VolumeCapability))
	if err != nil {
		return nil, err
	}
	if d.config.Shared && v.Attached != d.config.Node {
		return nil, d.violate("volume %s is staged on %s, and is attached to %q", r.VolumeId, d.config.Node, v.Attached)
	}
	if len(v.Staged) > 0 && !v.Staged[r.StagingTargetPath] {
		return nil, d.violate("volume %s is staged at a second place, %s", r.VolumeId, r.StagingTargetPath)
	}
	if !v.Block {
		if err := d.config.Host.Bind(d.dir(r.VolumeId), r.StagingTargetPath, false); err != nil {
			return nil, err
		}
	}
	v.Staged[r.StagingTargetPath] = true
	return &csipb.NodeStageVolumeResponse{}, d.save()
}

// NodeUnstageVolume implements csipb.NodeServer.
func (d *Driver) NodeUnstageVolume(
	_ context.Context, r *csipb.NodeUnstageVolumeRequest,
) (*csipb.NodeUnstageVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.VolumeId, r.StagingTargetPath)
	if err != nil {
		return nil, err
	}
	if len(v.Shown) > 0 {
		return nil, d.violate("volume %s is unstaged while pods have it", r.VolumeId)
	}
	if !v.Block {
		if err := d.config.Host.Unbind(r.StagingTargetPath); err != nil {
			return nil, err
		}
	}
	delete(v.Staged, r.StagingTargetPath)
	return &csipb.NodeUnstageVolumeResponse{}, d.save()
}

// NodePublishVolume implements csipb.NodeServer.
func (d *Driver) NodePublishVolume(
	_ context.Context, r *csipb.NodePublishVolumeRequest,
) (*csipb.NodePublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	inline := r.VolumeContext["csi.storage.k8s.io/ephemeral"] == "true"
	if inline && r.VolumeId != "" && d.state.Volumes[r.VolumeId] == nil {
		if err := d.add(r.VolumeId, r.VolumeId, 0, false); err != nil {
			return nil, err
		}
		d.state.Volumes[r.VolumeId].Inline = true
	}
	v, err := d.find(r.VolumeId, r.TargetPath, given(r.VolumeCapability))
	if err != nil {
		return nil, err
	}
	if !inline && d.stages() {
		if r.StagingTargetPath == "" {
			return nil, status.Error(codes.FailedPrecondition, "the request lacks the staging path")
		}
		if !v.Staged[r.StagingTargetPath] {
			return nil, d.violate("volume %s is published, and was not staged at %s", r.VolumeId, r.StagingTargetPath)
		}
	}
	const single = csipb.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
	if r.VolumeCapability.GetAccessMode().GetMode() == single && len(v.Shown) > 0 && !v.Shown[r.TargetPath] {
		return nil,
			status.Errorf(codes.FailedPrecondition, "volume %s has one writer, and is published elsewhere", r.VolumeId)
	}
	if v.Block {
		if err := os.WriteFile(r.TargetPath, nil, 0o600); err != nil {
			return nil, err
		}
	} else if err := d.config.Host.Bind(d.dir(r.VolumeId), r.TargetPath, r.Readonly); err != nil {
		return nil, err
	}
	v.Shown[r.TargetPath] = true
	return &csipb.NodePublishVolumeResponse{}, d.save()
}

// NodeUnpublishVolume implements csipb.NodeServer.
func (d *Driver) NodeUnpublishVolume(
	_ context.Context, r *csipb.NodeUnpublishVolumeRequest,
) (*csipb.NodeUnpublishVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.VolumeId, r.TargetPath)
	if status.Code(err) == codes.NotFound && filepath.Base(r.TargetPath) == "mount" {
		return &csipb.NodeUnpublishVolumeResponse{}, nil // an inline volume that is gone
	}
	if err != nil {
		return nil, err
	}
	if err := d.config.Host.Unbind(r.TargetPath); err != nil {
		return nil, err
	}
	if err := os.Remove(r.TargetPath); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	delete(v.Shown, r.TargetPath)
	if v.Inline {
		if err := os.RemoveAll(d.dir(r.VolumeId)); err != nil {
			return nil, err
		}
		delete(d.state.Volumes, r.VolumeId)
	}
	return &csipb.NodeUnpublishVolumeResponse{}, d.save()
}

// NodeGetVolumeStats implements csipb.NodeServer.
func (d *Driver) NodeGetVolumeStats(
	_ context.Context, r *csipb.NodeGetVolumeStatsRequest,
) (*csipb.NodeGetVolumeStatsResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.VolumeId, r.VolumePath)
	if err != nil {
		return nil, err
	}
	if !v.Shown[r.VolumePath] && !v.Staged[r.VolumePath] {
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", r.VolumeId, r.VolumePath)
	}
	return &csipb.NodeGetVolumeStatsResponse{Usage: []*csipb.VolumeUsage{
		{Unit: csipb.VolumeUsage_BYTES, Total: v.Size, Used: v.Size / 4, Available: v.Size - v.Size/4},
		{Unit: csipb.VolumeUsage_INODES, Total: 100, Used: 1, Available: 99},
	}}, nil
}

// NodeExpandVolume implements csipb.NodeServer.
func (d *Driver) NodeExpandVolume(
	_ context.Context, r *csipb.NodeExpandVolumeRequest,
) (*csipb.NodeExpandVolumeResponse, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	v, err := d.find(r.VolumeId, r.VolumePath)
	if err != nil {
		return nil, err
	}
	if !v.Shown[r.VolumePath] && !v.Staged[r.VolumePath] {
		return nil, status.Errorf(codes.NotFound, "volume %s is not at %s", r.VolumeId, r.VolumePath)
	}
	v.Size = max(v.Size, r.CapacityRange.GetRequiredBytes())
	return &csipb.NodeExpandVolumeResponse{CapacityBytes: v.Size}, d.save()
}
