"""A thousand ways to get it wrong, in a terminal and in a script: each is told in one sentence, none is let pass.

What the sentences say is tested where they are made. Here it counts that there is one: no traceback, no words of
pydantic, PyTorch or NumPy, and nothing written.
"""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import atoll
from atoll.cli import main
from atoll.settings.section import Section
from atoll.settings.validation import full_model
from atoll.support.errors import AtollError

RAW = re.compile(
    r"Traceback|pydantic|validation error|torch\.|NumPy|numpy\.|KeyError|TypeError|ValueError|0x[0-9a-f]{6}"
)

TINY = """
name = "tiny"
rounds = 2
[data]
clients = 6
samples = 8
[local]
steps = 2
batch_size = 4
[clustering]
clusters = 2
"""

# One case a line: what follows `atoll run tiny.toml`, each word a --set.
CHANGES = """
rounds=0
rounds=-3
rounds=1.5
rounds=ten
rounds=nan
rounds=true
rounds=[1]
rounds=
rounds=1e30
rounds=100000000000000000000
seed=-1
seed=0.5
seed=abc
seed=
name=
name=a/b
name=../x
data=5
data.clients=0
data.clients=-1
data.clients=2.5
data.clients=many
data.clients=
data.samples=0
data.samples=-4
data.samples=x
data.indices=sorted
data.dataset=table data.root=. data.length=0
data.dataset=table data.root=. data.tokenizer=7
model.name=pretrained model.path=nowhere
model.name=pretrained model.path=. model.lora=3
data.dataset=
data.dataset=imagenet
data.dataset=5
data.dataset=no.such.module:function
data.dataset=packaged
data.dataset=packaged data.table=chem98
data.dataset=packaged data.table=chem97 data.part=halves
data.dataset=packaged data.table=chem97 data.fewest_rows=0
data.dataset=packaged data.table=chem97 data.largest_groups=0
data.dataset=json:nothing
data.dataset=:
data.dataset=a:b:c
data.partition=sorted
data.partition=dirichlet data.alpha=0
data.partition=dirichlet data.alpha=-1
data.partition=dirichlet data.alpha=nan
data.partition=dirichlet data.alpha=high
data.partition=shards data.samples= data.shards_per_client=0
data.partition=shards data.samples= data.shards_per_client=1000000
data.partition=natural data.samples=
data.partition=planted data.dataset=regression data.groups=0
data.partition=major-class data.rho_device=2
data.partition=one-label data.size_ratio=0.5
data.partition=iid data.alpha=0.5
data.rotations=3
data.rotations=0
data.standardise=yes
data.standardise=given
data.standardise=given data.mean=0.1
data.standardise=given data.mean=0.1 data.deviation=0
data.standardise=given data.mean=[0.1,0.2] data.deviation=1.0
data.root=/no/such/folder data.dataset=mnist data.fetch=false
data.fetch=maybe
data.held_out_clients=-1
data.test_samples=0
data.test_samples=half
data.clients_file=none.csv
data.nothing=1
model.name=resnet152
model.name=5
model.name=cnn
model.name=alexnet
model.name=json:loads
model.start=nowhere.pt
model.travels=none
model.travels=[]
model.travels=['nothing.*']
travel=int8
travel.codec=
travel.codec=5
travel.codec=int4
travel.codec=json:loads
travel.codec=no.such.module:function
travel.stages=clip
travel.stages=["clib"]
travel.stages=[1]
travel.stages=["json:loads"]
travel.clip_norm=1.0
travel.codecs=int8
travel.share=0.1
travel.feedback=often
travel.codec=topk travel.share=0
travel.codec=topk travel.share=-0.5
travel.codec=topk travel.share=1.01
travel.codec=topk travel.share=nan
travel.codec=topk travel.share=half
travel.codec=int8 travel.rounding=up
travel.codec=int8 travel.share=0.1
travel.codec=int8 method.name=centralized
travel.codec=int8 method.name=local
travel.codec=int8 method.name=fesem
travel.codec=int8 run.executor=stacked
model.layers=3
local.lr=0
local.lr=-0.1
local.lr=nan
local.lr=inf
local.lr=big
local.lr=[0.1]
local.lr=true
local.lr=
local.learning_rate=0.1
local.steps=0
local.steps=-1
local.steps=1.5
local.steps=full
local.epochs=0
local.batch_size=0
local.batch_size=-2
local.batch_size=4.0
local.batch_size=all
local.batch_size=
local.optimizer=adamx
local.optimizer=lbfgs
local.schedule=cosin
local.schedule=step
local.schedule=ReduceLROnPlateau
local.schedule=list local.rates=[0.1]
local.warmup_rounds=-1
local.optimizer=json:loads
local.optimizer=momentum local.momentum=1
local.optimizer=momentum local.momentum=-0.1
local.momentum=0.9
local.proximal=-1
local.proximal=nan
local.lr_decay=0
local.lr_decay=1.1
local.lr_factor=0
clustering.clusters=0
clustering.clusters=-2
clustering.clusters=7
clustering.clusters=2.0
clustering.method=kmeans
clustering.method=5
clustering.method=json:loads
clustering.method=major-class clustering.rho_cluster=0.01
clustering.method=availability
clustering.k=3
method.name=
method.name=fedprox
method.name=SCAFFOLD
method.name=5
method.name=json:loads
method.name=method:method
method=fedavg
method.fraction=0
method.fraction=-0.1
method.fraction=1.5
method.fraction=nan
method.fraction=half
method.order=sorted
method.combine=average
method.combine=krum method.byzantine=9
method.combine=trimmed-mean method.trim=0.9
method.select=best
method.select=tiers method.name=fedavg method.select_tiers=100
method.select=power-of-choice method.name=fedavg method.candidates=1000
method.select=size
method.name=ifca method.clusters=0
method.name=ifca method.clusters=-1
method.name=cfl-mgd method.beta=1
method.name=cfl-mgd method.option=both
method.name=fedadam method.server_lr=0
method.name=fedadam method.beta1=2
method.name=fedbuff method.buffer=0
method.name=fedasync method.mixing=0
method.name=fedat method.tiers=50
method.name=feddyn method.alpha=0
method.name=fednova local.epochs=0
method.name=ditto method.penalty=-1
method.name=fedem method.clusters=0
method.name=fedem method.clusters=1000
method.name=fedrc method.clusters=1000
method.name=fedrc data.dataset=regression
method.name=fedsoft method.clusters=1000
method.name=fedsoft method.penalty=-1
method.name=fedsoft method.least_importance=0
method.name=fedsoft local.proximal=0.1
method.name=pfedme method.inner_steps=0
method.name=pfedme method.penalty=0
method.name=pfedme method.inner_lr=0
method.name=apfl method.alpha=1.1
method.name=apfl local.optimizer=adam
method.name=perfedavg method.variant=third-order
method.name=perfedavg method.delta=0
method.name=fedamp method.sigma=0
method.name=fedamp method.alpha=1e6
method.name=moon method.temperature=0
method.name=moon method.mu=-1
method.name=cfl method.eps1=-1
method.name=feddrift method.delta=-1
method.name=feddrift method.variant=keen
method.name=feddrift method.clusters=7
method.name=flhc method.linkage=ward2
drift.kind=rotations
drift.kind=groups
drift.kind=groups drift.rounds=[1]
drift.kind=nothing:here drift.rounds=[1]
drift.rounds=[1]
drift.share=0.5
drift.kind=partition drift.rounds=[]
drift.kind=partition drift.rounds=[0]
drift.kind=partition drift.rounds=[2]
drift.kind=partition drift.rounds=[1,1]
drift.kind=partition drift.rounds=[1] drift.gradual_rounds=1
drift.kind=partition drift.rounds=[1] drift.share=0
drift.kind=partition drift.rounds=[1] drift.concepts=0
drift.kind=partition drift.rounds=[1] drift.concepts=[[0,0,0,0,0,0]]
drift.kind=partition drift.rounds=[1] drift.concepts=[[0,0,0],[0,0,1]]
drift.kind=partition drift.rounds=[1] drift.concepts=[[0,0,0,0,0,0],[0,0,0,0,0,-1]]
drift.kind=groups drift.rounds=[1] data.rotations=2 drift.concepts=[[0,0,0,0,0,0],[0,0,0,0,0,2]]
drift.kind=partition drift.rounds=[1] data.partition=natural
drift.kind=partition drift.rounds=[1] data.skew=noise
drift.kind=partition drift.rounds=[1] data.held_out_clients=1
drift.kind=partition drift.rounds=[1] run.executor=fleet
drift.kind=partition drift.rounds=[1] method.name=pacfl
drift.kind=partition drift.rounds=[1] method.name=fmcl
drift.kind=partition drift.rounds=[1] method.name=ifca method.resample=true
drift.kind=groups drift.rounds=[1] data.swaps=4 method.name=feddrift method.variant=oracle method.clusters=2
data.swaps=0
data.swaps=6
data.swaps=2 data.rotations=2
data.swaps=2 data.partition=rotated
data.swaps=2 data.skew=noise
data.swaps=2 data.dataset=sea
data.dataset=sea data.flips=1
data.dataset=sea data.pool=0
method.name=bcd method.gamma=-1
method.name=hierarchical rounds=3
method.name=hierarchical rounds=20 method.pattern=ring
method.name=hierarchical rounds=20 method.intra_rounds=0
method.name=hierarchical rounds=20 network.topology=moebius
method.name=hierarchical rounds=20 network.grid=[1,1]
method.name=hierarchical rounds=20 network.grid=[0,2]
method.name=hierarchical rounds=20 network.side_metres=0
method.name=hierarchical rounds=20 network.bandwidth_hz=-1
method.name=hierarchical rounds=20 network.file=none.csv
method.name=hierarchical rounds=20 network.clients_file=none.csv
method.name=hierarchical rounds=20 network.trace_file=none.csv
method.name=hierarchical rounds=20 network.metres_per_round=0
method.name=hierarchical rounds=20 clustering.method=feduc clustering.time_limit=0
method.name=hierarchical rounds=20 clustering.method=feduc clustering.mu=-1
method.name=hierarchical rounds=20 clustering.method=feduc clustering.frequencies=[1]
network.seconds_per_sample=-1
network.seconds_per_sample=[1]
network.seconds_per_sample=[2.0,1.0]
network.upload_seconds=-1
network.upload_seconds=soon
network.speed=3
faults.dropout=1
faults.dropout=-0.5
faults.dropout=nan
faults.deadline_seconds=0
faults.deadline_seconds=0.001
faults.slots_per_day=0
faults.slots_per_day=24
faults.attackers=1
faults.attackers=0.01
faults.attackers=0.5 faults.attack=bribery
faults.attackers=0.5 faults.attack_strength=0
faults.max_update_norm=0
faults.usual_norms=true
faults.usual_norms=refuse secure.sums=true run.executor=fleet
faults.tolerate=perhaps
run.executor=fast
run.executor=weighted
run.executor=fleet
run.executor=cores run.workers=0
run.executor=cores run.workers=1000000000
run.workers=-1
run.device=gpu
run.stop_at=accuracy
run.stop_at=test_acc>=0.9
run.device=cuda:99
run.device=
run.precision=float64
run.precision=tf32
run.client_updates=0
run.client_updates=1 method.fraction=1.0
run.virtual_seconds=0
run.virtual_seconds=0.0001
run.evaluate_every=0
run.evaluate_samples=0
run.probes=accuracy
run.probes=['nothing']
run.probes=['json:loads']
run.trackers=['comet']
run.trackers=tensorboard
run.checkpoint_minutes=0
run.checkpoint_every=0
run.stack_bytes=0
run.executor=stacked run.stack_bytes=100
run.debug=1
run.gpu=true
fleet.nodes=0
fleet.wait_seconds=-1
local
=
.lr=1
local..lr=1
local.lr.more=1
runs=1
panels=[]
scales=1
nothing=1
epochs=3
lr=0.1
data.skew=blur
data.skew=noise data.skew_levels=0
data.skew=noise data.skew_levels=7
data.skew=noise data.variance=-1
data.skew=rotation data.angle=round
data.skew=colour data.strength=2
data.augment=crop
data.augment=5
data.augment=crop-flip
data.augment=crop-flip data.shift=-1
data.augment=crop-flip data.shift=1.5
data.augment=crop-flip data.shift=1 data.flip=2
data.augment=crop-flip data.shift=1 data.batchwise=1
data.augment=cifar
data.augment=cifar data.brightness=2
data.augment=cifar data.contrast=-1
data.shift=1
data.augment=json:loads
model.name=alexnet model.crop=0
model.name=alexnet model.crop=wide
model.name=alexnet model.edges=1
data.variance=0.1
data.dataset=regression data.width=0
data.dataset=regression data.noise=-0.1
data.dataset=regression data.distance=0
data.dataset=folder data.root=. data.inputs=5
data.dataset=folder data.root=. data.targets=[1]
data.dataset=folder data.root=. data.classes=0
data.dataset=folder data.root=. data.scale=big
data.dataset=folder data.root=. data.channels_last=last
data.dataset=folder data.root=. data.test_every=1
data.dataset=table
data.dataset=table data.root=none.csv data.target=y
data.dataset=table data.root=text.txt data.target=y
data.dataset=table data.root=rows.csv
data.dataset=table data.root=rows.csv data.target=why
data.dataset=table data.root=rows.csv data.target=[]
data.dataset=table data.root=rows.csv data.target=y data.client=clinic
data.dataset=table data.root=rows.csv data.target=y data.client=x
data.dataset=table data.root=rows.csv data.target=y data.client=c data.group=x
data.dataset=table data.root=rows.csv data.target=y data.split=c
data.dataset=table data.root=rows.csv data.target=y data.time=c
data.dataset=table data.root=rows.csv data.target=y data.id=c
data.dataset=table data.root=rows.csv data.target=y data.inputs=y
data.dataset=table data.root=rows.csv data.target=y data.inputs=[]
data.dataset=table data.root=rows.csv data.target=y data.categorical=['y']
data.dataset=table data.root=rows.csv data.target=y data.categorical=x
data.dataset=table data.root=rows.csv data.target=y data.text=['x']
data.dataset=table data.root=rows.csv data.target=y data.task=clustering
data.dataset=table data.root=rows.csv data.target=c data.task=regression
data.dataset=table data.root=rows.csv data.target=y data.missing=guess
data.dataset=table data.root=rows.csv data.target=y data.categories=1
data.dataset=table data.root=rows.csv data.target=y data.text=['c'] data.hashes=0
data.dataset=table data.root=rows.csv data.target=y data.window=3
data.dataset=table data.root=rows.csv data.target=y data.inputs=x data.time=x data.window=0
data.dataset=table data.root=rows.csv data.target=y data.inputs=x data.time=x data.window=50
data.dataset=table data.root=rows.csv data.target=y data.inputs=x data.time=x data.window=2 data.horizon=0
data.dataset=table data.root=rows.csv data.target=y data.client=c data.min_samples=0
data.dataset=table data.root=rows.csv data.target=y data.client=c data.min_samples=500
data.dataset=table data.root=rows.csv data.target=y data.test_every=0
data.dataset=images data.root=. data.side=0
data.dataset=images data.root=. data.side=8
data.dataset=hf:
data.dataset=hf data.repository=5
data.dataset=hf:some/reviews data.configuration=5 data.target=y
data.partition=quantity data.sizes=equal
data.partition=quantity data.sigma=-1
data.partition=labels-and-quantity data.sigma=wide
data.partition=some-labels data.labels_per_client=0
data.partition=some-labels data.labels_per_client=11
data.partition=file
data.partition=file data.partition_file=none.npz
data.partition=file data.partition_file=text.txt
model.bias=maybe model.name=linear
model.name=mlp model.hidden=0
model.name=tabular model.hidden=[0]
model.name=alexnet model.channels=0
model.name=alexnet model.response_norm=1
model.name=lstm model.symbols=0
model.name=lstm model.embedding=-1
model.name=transformer model.width=10 model.heads=4
model.name=transformer model.heads=0
model.name=resnet model.blocks=[]
model.name=resnet model.blocks=[0]
model.name=resnet model.groups=3
clustering.xi=guesses
method.name=hierarchical rounds=20 clustering.method=feduc clustering.xi=guesses
method.name=hierarchical rounds=20 clustering.method=feduc clustering.warmup_rounds=-1
method.name=hierarchical rounds=20 clustering.method=feduc clustering.smoothness=rough
method.name=hierarchical rounds=20 clustering.method=feduc clustering.initial_gap=-1
clustering.method=timezone clustering.local_hour=noon
clustering.method=availability clustering.slots_per_client=0
clustering.local_hour=6
method.name=hierarchical rounds=20 clustering.method=feduc clustering.overshoot=far
method.name=hierarchical rounds=20 clustering.method=feduc clustering.refine=2
method.name=hierarchical rounds=20 clustering.method=feduc clustering.objective=speed
method.name=hierarchical rounds=20 clustering.method=feduc clustering.objective=time
method.name=hierarchical rounds=20 clustering.method=feduc clustering.objective=time clustering.seconds=0
method.name=hierarchical rounds=20 clustering.method=feduc clustering.objective=progress clustering.mixing=-1
method.name=hierarchical rounds=20 clustering.method=feduc clustering.opening=last
method.name=hierarchical rounds=20 clustering.method=feduc clustering.start=somewhere
method.name=hierarchical rounds=20 clustering.method=feduc clustering.passes=-1
method.name=hierarchical rounds=20 network.client_milliwatts=[100.0,50.0]
method.name=hierarchical rounds=20 network.client_milliwatts=50
method.name=hierarchical rounds=20 network.aggregator_dbm=loud
method.name=hierarchical rounds=20 network.noise_dbm=nan
method.name=hierarchical rounds=20 network.path_loss_db=inf
method.name=hierarchical rounds=20 network.path_loss_exponent=0
method.name=hierarchical rounds=20 network.aggregators_file=none.csv
method.name=hierarchical rounds=20 network.aggregators_file=rows.csv
method.name=hierarchical rounds=20 network.frequencies=[1]
method.name=hierarchical rounds=20 network.frequencies=often
method.name=hierarchical rounds=20 network.downloads=sometimes
method.name=hierarchical rounds=20 network.regions=sum
method.name=hierarchical rounds=20 network.regions=average
method.name=hierarchical rounds=20 network.metres_per_round=1.0 network.recluster_every=0
method.name=hierarchical rounds=20 network.topology=regular network.degree=-1
method.name=hierarchical method.pattern=decsyn rounds=20 network.topology=regular network.degree=0
method.name=hierarchical rounds=20 network.topology=erdos-renyi network.probability=2
method.name=hierarchical rounds=20 network.topology=edges
method.name=hierarchical rounds=20 network.topology=edges network.edges=[[0,9]]
method.weights=loudness
method.name=fedavgm method.momentum=1
method.name=fedadagrad method.tau=0
method.name=fedyogi method.beta2=1
method.name=fedasync method.concurrency=0
method.name=fedasync method.concurrency=7
method.name=fedasync method.staleness=linear
method.name=fedasync method.exponent=-1
method.name=fedasync method.staleness=hinge method.hinge_after=-1
method.name=fedasync method.staleness=hinge method.hinge_slope=0
method.name=ifca method.clusters=2 method.restarts=0
method.name=ifca method.clusters=2 method.restarts=2 method.restart_rounds=0
method.name=ifca method.clusters=2 method.resample=often
method.name=ifca method.clusters=2 method.shared_layers=-1
method.name=ifca method.clusters=2 method.shared_layers=99
method.name=cfl method.eps2=-1
method.name=flhc method.warmup=-1
method.name=flhc method.metric=hamming
method.name=flhc method.threshold=far
method.name=fedgroup method.pretrained=0
method.name=pacfl method.vectors=0
method.name=pacfl method.angle=widest
method.name=fmcl method.threshold=-1
method.name=fmcl method.clusters=7
method.name=fmcl method.encoder=resnet
method.name=fmcl method.encoder=os:getcwd
method.name=ifca method.encoder=math:sqrt
method.name=stocfl method.least_cosine=1.1
method.name=stocfl method.clusters=7
method.name=stocfl local.proximal=0.1
method.name=lcfed method.decision_layers=99
method.name=lcfed method.rank=0
method.name=lcfed method.embedding_penalty=-1
method.name=lcfed method.clusters=7
method.name=fedper method.personal_layers=-1
method.name=fedper method.personal_layers=99
method.name=fedrep method.body_steps=0
method.name=fedrep method.body_steps=99
method.combine=geometric-median method.iterations=0
method.combine=geometric-median method.smoothing=0
method.combine=norm-clipping method.clip_norm=0
method.combine=norm-clipping
method.combine=multi-krum method.keep=0
method.clip_norm=1
faults.availability_file=none.csv
faults.availability_file=rows.csv
faults.attackers=0.2 faults.claimed_samples=0
faults.attackers=0.2 faults.claimed_loss=nan
secure.sums=perhaps
secure.sums=true secure.range=0
secure.sums=true secure.fraction_bits=53
secure.sums=true secure.threshold=0.4
secure.sums=true secure.least_nodes=1
privacy.trust=everyone
privacy.trust=server
privacy.trust=server privacy.clip=0 privacy.noise=1.0
privacy.trust=server privacy.clip=1.0 privacy.noise=-1.0
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.delta=0
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.delta=1
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.epsilon=0
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.epsilon=1e-9
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.adjacency=neighbours
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.samples_cap=0
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.count_noise=-1
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.least_clients=0
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.clusters_are_public=ask
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.quantile=2
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.quantile=0.5
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.quantile=0.5 privacy.quantile_noise=0
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 privacy.quantile=0.5 privacy.quantile_rate=0
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 method.name=scaffold
privacy.trust=server privacy.clip=1.0 privacy.noise=1.0 method.combine=median
privacy.trust=aggregator privacy.clip=1.0 privacy.noise=1.0 method.name=fedavg
privacy.trust=client privacy.clip=1.0 privacy.noise=1.0 privacy.identity_epsilon=-1
privacy.trust=client privacy.clip=1.0 privacy.noise=1.0 privacy.identity=shouted
privacy.trust=client privacy.clip=1.0 privacy.noise=1.0 privacy.most_loss=0
privacy.trust=client privacy.clip=1.0 privacy.noise=1.0 method.name=ifca method.clusters=2
privacy.clip=1.0
fleet.deadline_seconds=0
fleet.recluster_every=0
fleet.strikes=0
fleet.samples_limit=0.5
fleet.samples_limit=nan
run.executor=ray run.address=nowhere
run.state_bytes=0
run.cuda_graphs=yes
run.cuda_graphs=true
run.heterogeneity=2
run.heterogeneity=true method.name=ifca method.clusters=2
seed=1000.0
seed=[0,1]
seed=0..3
name=.hidden
name=[a]
data.clients=[6]
data.clients=6.0
data.clients=1e3
data.clients=6,7
data.samples=[8,8]
data.samples=8.5
data.partition=[iid]
data.partition=iid,dirichlet
data.partition=non-iid
data.partition=Dirichlet
data.dataset=digits.csv
data.dataset=../digits
data.dataset=[digits]
model.name=builtins:int
model.name=[mlp]
model.name=mlp,linear
local.lr=0,1
local.lr=10%
local.lr=1/10
local.lr=1e-400
local.lr=-0.0
local.lr=0.1=0.2
local.lr==0.1
local.epochs=-1
local.batch_size=fulll
local.batch_size=1e9
local.optimizer=SGD
local.optimizer=[sgd]
local.optimizer=momentum local.momentum=nan
clustering.clusters=two
clustering.clusters=[2]
clustering.clusters=
clustering.method=random,major-class
clustering.method=builtins:list
method.name=fedavg,fedcluster
method.name=fedavg method.order=fixed
method.name=builtins:dict
method.name=[fedavg]
method.fraction=10%
method.fraction=50
method.fraction=[0.1]
faults.dropout=10%
faults.attackers=-0.1
faults.attackers=2
faults.attackers=0.5 faults.attack=
run.executor=Serial
run.executor=gpu
run.executor=[serial]
run.workers=two
run.workers=1.5
run.device=0
run.device=cuda:x
run.evaluate_every=1.5
run.evaluate_every=never
run.evaluate_samples=all
run.evaluate_samples=-5
run.probes=[1]
run.trackers=[1]
run.trackers=[]x
run.checkpoint_minutes=nan
run.debug=maybe
travel.codec=topk travel.share=2
travel.codec=[int8]
fleet.nodes=1.5
fleet.wait_seconds=soon
data.=1
.=1
==
local.lr:0.1
privacy.trust=client privacy.clip=nan privacy.noise=1.0
privacy.trust=client privacy.clip=1.0 privacy.noise=-1
method.name=fedprox local.proximal=0.1
method.name=fedavgm method.server_lr=nan
method.name=ifca method.clusters=two
method.name=hierarchical rounds=20 network.grid=2x2
method.name=hierarchical rounds=20 network.topology=edges network.edges=5
method.name=hierarchical rounds=20 network.topology=edges network.edges=none.csv
method.name=hierarchical rounds=20 method.pattern=CenSyn,CenAsy
data.rotations=two
data.standardise=pool,given
secure.sums=1
"""

# One case a line: a whole command line.
COMMANDS = """
rnu
--nothing
run
run tiny.toml more
run none.toml
run tiny
run scaffold
run .
run ""
run tiny.toml --only nothing
run tiny.toml --scale small
run tiny.toml --scale ""
run tiny.toml --set
run tiny.toml --out tiny.toml
run tiny.toml --out tiny.toml/below
run tiny.toml --out .
run tiny.toml --resume --overwrite
run tiny.toml --schedule none.npz
run tiny.toml --schedule tiny.toml
run broken.toml
run list.toml
run text.txt
schedule tiny.toml --plot ""
schedule tiny.toml --plot .
schedule tiny.toml --plot /
schedule tiny.toml --plot ..
schedule tiny.toml --plot tiny.toml/x
schedule tiny.toml --set model.name=alexnet
schedule tiny.toml --set local.optimizer=json:loads
schedule tiny.toml --set run.probes=['nothing']
schedule tiny.toml --set run.executor=weighted
schedule none
cluster tiny.toml --plot ""
cluster tiny.toml --plot .
cluster tiny.toml --plot /
cluster tiny.toml --plot tiny.toml/x
cluster tiny.toml --set clustering.clusters=9
cluster tiny.toml --set model.name=alexnet
cluster tiny.toml --set run.probes=['nothing']
cluster tiny.toml --set run.device=gpu
cluster none
recipes show none
recipes show
recipes none
data none
data fetch none
data fetch
data inspect none
data inspect tiny.toml --plot ""
data inspect tiny.toml --plot .
data list --root none
export none
export .
export tiny.toml
export . --format onnxx
export . --out ""
export . --out .
export . --cluster x
report
report none
report .
report . --html ""
report . --html .
report . --html x.pdf
report . --target 0
report . --target 2
report . --target nan
report . --target high
report tiny.toml
watch
watch tiny.toml --no-browser
watch . --port 99999 --no-browser
watch . --port x --no-browser
watch . --target 2 --no-browser
sweep tiny.toml
sweep tiny.toml --over
sweep tiny.toml --over local.lr
sweep tiny.toml --over local.lr=
sweep tiny.toml --over local.learning_rate=1,2
sweep tiny.toml --over local.lr=0,-1
sweep tiny.toml --over seed=5..1
sweep tiny.toml --over seed=0..1 --jobs 0
sweep tiny.toml --over seed=0..1 --trials 3
sweep tiny.toml --over seed=0..1 --metric speed
sweep tiny.toml --over seed=0..1 --out tiny.toml
sweep none --over seed=0..1
reproduce none
reproduce fedcluster --scale huge
reproduce fedcluster --seeds 0
reproduce fedcluster --jobs 0
reproduce fedcluster --no-run --out none
bench --only nothing
verify more
schema more
fleet none
fleet node
run tiny.toml --out ""
run tiny.toml --out /dev/null
run tiny.toml --only ""
run tiny.toml --schedule .
run --set rounds=1
run -x
run tiny.toml --verbose=3
run TINY.TOML
run tiny.tml
run tiny.toml.bak
run /
run ~
schedule tiny.toml --width 0
schedule tiny.toml --width -3
schedule tiny.toml --width wide
schedule tiny.toml --width nan
schedule tiny.toml --plot gantt.gif
schedule tiny.toml --privacy
schedule tiny.toml --only nothing
cluster tiny.toml --only nothing
cluster tiny.toml --plot x.html
cluster tiny.toml --width 1e9 --plot x
data inspect tiny.toml --write .
data inspect tiny.toml --write ""
data inspect tiny.toml --write tiny.toml/x
data split tiny.toml
data split tiny.toml --out tiny.toml
data split tiny.toml --out .
data split tiny.toml --out ""
data fetch mnist --root tiny.toml
data fetch ../mnist
data fetch ""
data list --root tiny.toml
data list more
new
new .
new tiny.toml
new tiny.toml/x
new ""
recipes show quickstart more
recipes show ""
recipes show ../quickstart
recipes --show quickstart
data fetch quickstart
export none --format pt
export . --format pt
export . --cluster -1
report . --width 0
report . --against nothing
report none --html x.html
report . --out tiny.toml
report ""
watch none --port -1
watch . --host nowhere.invalid --no-browser
watch tiny.toml/x --no-browser
sweep tiny.toml --over seed
sweep tiny.toml --over seed=a..b
sweep tiny.toml --over seed=0..1 --over seed=2..3
sweep tiny.toml --over =1,2
sweep tiny.toml --over local.lr=0.1,0.1
sweep tiny.toml --over local.lr=0.1,0.2 --part 3/2
sweep tiny.toml --over local.lr=0.1,0.2 --part x
sweep tiny.toml --over local.lr=0.1,0.2 --part 0/0
sweep tiny.toml --over local.lr=0.1,0.2 --jobs x
sweep tiny.toml --over local.lr=0.1,0.2 --target nan
sweep tiny.toml --tune --trials 0 --over local.lr=0.1..0.2
sweep tiny.toml --tune --over local.lr=0.2..0.1
sweep tiny.toml --over seed=0..1000000000
plan none
plan tiny.toml
plan tiny.toml --seconds 0
plan tiny.toml --seconds nan
plan tiny.toml --seconds soon
plan tiny.toml --target 2
plan tiny.toml --seeds 0
plan tiny.toml --from none
plan tiny.toml --out tiny.toml
reproduce
reproduce fedcluster --seeds x
reproduce fedcluster --out tiny.toml
reproduce fedcluster --no-run --out tiny.toml
bench --quick more
bench --only ""
fleet up none
fleet up tiny.toml --nodes 0
fleet up tiny.toml --nodes x
fleet init
fleet init --host ""
fleet server none
fleet status none
fleet revoke none 0
fleet rotate none 0
fleet renew none
fleet node none
"""

# One case a line: Python, with what `names` gives.
CALLS = """
Dataset("d", x, y[:80], x, y, 3)
Dataset("d", x, y, x[:50], y, 3)
Dataset("d", x, y, x[:, :2], y, 3)
Dataset("d", x[:0], y[:0], x, y, 3)
Dataset("d", x, y, x[:0], y[:0], 3)
Dataset("d", x, y, x, y, 2)
Dataset("d", x, y + 1, x, y, 3)
Dataset("d", x, y - 1, x, y, 3)
Dataset("d", x, y + 0.5, x, y, 3)
Dataset("d", x, one_hot, x, y, 3)
Dataset("d", x, names_of, x, y, 3)
Dataset("d", x, None, x, y, 3)
Dataset("d", None, y, x, y, 3)
Dataset("d", nan, y, x, y, 3)
Dataset("d", x, y, nan, y, 3)
Dataset("d", [[None]], [0], x, y, 3)
Dataset("d", x, nan[:, 0], x, x[:, 0], 0, loss="squared")
Dataset("d", "x", "y", "x", "y", 3)
Dataset("d", [[1, 2], [3]], [0, 1], x, y, 3)
Dataset("d", x * 1j, y, x, y, 3)
Dataset("d", x.astype("datetime64[s]"), y, x, y, 3)
Dataset("d", object(), y, x, y, 3)
Dataset("d", {"a": 1}, y, x, y, 3)
Dataset("d", x, y, x, y, 0)
Dataset("d", x, y, x, y, -1)
Dataset("d", x, y, x, y, 2.5)
Dataset("d", x, y, x, y, "three")
Dataset("d", x, y, x, y, None)
Dataset("d", x, y, x, y, 3, scale=0)
Dataset("d", x, y, x, y, 3, scale=float("nan"))
Dataset("d", x, y, x, y, 3, scale="1/255")
Dataset("d", x, y, x, y, 3, loss="mse")
Dataset("d", x, y, x, y, 3, loss="squared")
Dataset("d", x, y, x, y, 3, turns=(0, 5))
Dataset("d", x, y, x, y, 3, turns=())
Dataset("d", x, y, x, y, 3, groups=y[:5])
Dataset("d", x, y, x, y, 3, groups=y - 5)
Dataset("d", x, y, x, y, 3, owners=y[:5])
Dataset("d", x, y, x, y, 3, owners=names_of)
Dataset("d", x, y, x, y, 3, test_owners=y[:5])
Dataset(7, x, y, x, y, 3)
Dataset("d", tensor[:80], y, x, y, 3)
Dataset("d", tensor * inf, y, x, y, 3)
from_torch(5)
from_torch([])
from_torch([(1, 2)], test_every=1)
make_population(data, [])
make_population(data, None)
make_population(data, 5)
make_population(data, "all")
make_population(data, [[0, 1], []])
make_population(data, [[0, 1000]])
make_population(data, [[-1]])
make_population(data, [[0.5]])
make_population(data, [["a"]])
make_population(data, [0, 1, 2])
make_population(data, np.arange(100))
make_population(data, np.zeros((2, 2, 2), int))
make_population(data, np.zeros((2, 0), int))
make_population(data, np.ones((4, 100), bool))
make_population(None, [[0]])
make_population(x, [[0]])
make_population(data, [[0], [1]], {"utc_offset": np.zeros(3)})
Population(data, [0, 1], [0, 1, 5])
Population(data, [0, 1], [1, 2])
Population(data, [0, 1], [0, 2, 1, 2])
Population(data, [0, 200], [0, 1, 2])
Population(data, "ab", [0, 1, 2])
Clustering([0, 1, 2], 2)
Clustering([0, -2], 2)
Clustering([0, 1], 0)
Clustering([0, 1], "two")
Clustering([0.5, 1], 2)
Clustering([[0, 1]], 2)
Clustering(["a", "b"], 2)
Clustering(None, 2)
Clustering([0, 1], 2, hours=(1.0,))
Clock([1, 2], [1])
Clock([-1], [1])
Clock([float("nan")], [1])
Clock(["fast"], [1])
Clock([1], [1], deadline_seconds=0)
LocalRule(sgd, 0)
LocalRule(sgd, -0.1)
LocalRule(sgd, float("nan"))
LocalRule(sgd, float("inf"))
LocalRule(sgd, "0.1")
LocalRule(sgd, None)
LocalRule("sgd", 0.1)
LocalRule(None, 0.1)
LocalRule(sgd, 0.1, steps=0)
LocalRule(sgd, 0.1, steps=1.5)
LocalRule(sgd, 0.1, batch_size=0)
LocalRule(sgd, 0.1, batch_size=-1)
LocalRule(sgd, 0.1, batch_size="all")
LocalRule(sgd, 0.1, batch_size=None)
LocalRule(sgd, 0.1, proximal=-1)
LocalRule(sgd, 0.1, lr_decay=2)
LocalRule(sgd, 0.1, carry_moments="yes")
fedcluster(population, Clustering([0, 1, 0, 1, 1], 2), rule, 2)
fedcluster(population, Clustering([0] * 20, 2), rule, 2)
fedcluster(population, None, rule, 2)
fedcluster(population, [0, 1] * 10, rule, 2)
fedcluster(population, clustering, rule, 0)
fedcluster(population, clustering, rule, 2, fraction=0)
fedcluster(population, clustering, rule, 2, order="sorted")
fedcluster(data, clustering, rule, 2)
cycling(population, clustering, 0)
fedavg(population, rule, 0)
fedavg(population, rule, -1)
fedavg(population, rule, 2.5)
fedavg(population, rule, "2")
fedavg(population, rule, None)
fedavg(population, rule, 2, fraction=0)
fedavg(population, rule, 2, fraction=1.5)
fedavg(population, rule, 2, fraction=float("nan"))
fedavg(population, rule, 2, fraction="all")
fedavg(population, rule, 2, seed=-1)
fedavg(population, rule, 2, seed=0.5)
fedavg(population, rule, 2, clock=5)
fedavg(population, rule, 2, clock=Clock([1, 1], [1, 1]))
fedavg(population, 0.1, 2)
fedavg(None, rule, 2)
centralized(population, rule, 2)
ifca(population, rule, 2, clusters=0)
cfl_mgd(population, rule, 2, beta=1)
cfl_mgd(population, rule, 2, option="both")
fedadam(population, rule, 2, server_lr=0)
fedyogi(population, rule, 2, beta2=1)
scaffold(population, rule, 0)
fedbuff(population, rule, clock, 2, buffer=0)
fedbuff(population, rule, None, 2)
fedasync(population, rule, clock, 2, mixing=2)
fedat(population, rule, clock, 2, tiers=100)
feddyn(population, rule, 2, alpha=-1)
fednova(population, rule, 2, fraction=0)
ditto(population, rule, 2, penalty=-1)
fedem(population, rule, 2, module)
fedem(population, rule, 2, None)
fedrc(population, rule, 2, mixture(lambda: module), 3)
fedrc(population, rule, 2, module, clusters=1000)
fedsoft(population, rule, 2, module)
fedsoft(population, rule, 2, module, clusters=1000)
mixture(lambda: module, clusters=0)
mixture_by_class(lambda: module, 3, loss="squared")
own_and_centres(lambda: module, clusters=0)
pfedme(population, rule, 2, inner_lr=0)
apfl(population, rule, 2, alpha=-0.1)
perfedavg(population, rule, 2, variant="exact")
fedamp(population, rule, 2, alpha=1e9)
moon(population, rule, 2, temperature=-1)
flhc(population, rule, 2, metric="cosine2")
hierarchical(population, clustering, None, rule, 4)
hierarchical(population, clustering, network, rule, 4, pattern="ring")
hierarchical(population, Clustering([0], 1), network, rule, 4)
Settings(rounds=0)
Settings(5)
Settings(rounds="5")
Settings(epochs=3)
Settings(method="fedavgg")
Settings(model=nn.Linear(2, 2))
Experiment("quickstart")
Experiment(clusterings=print)
Settings(method={"name": "fedprox"})
Settings(method={"name": "fedavg", "fraction": 2})
Settings(local={"lr": float("nan")})
Settings(local=None)
change(Settings())
run(5)
run(None)
run("none")
run("none.toml")
run({"rounds": 0})
run({"runs": []})
run({"runs": 5})
run({5: 5})
run("quickstart")
run("quickstart", only="nothing")
run("quickstart", scale="huge")
run("quickstart", only="FedAvg", rounds=0)
run("quickstart", only="FedAvg", local=5)
run("quickstart", only="FedAvg", lr=0.1)
run("quickstart", only="FedAvg", local={"learning_rate": 0.1})
run("quickstart", only="FedAvg", data={"dataset": x})
run("quickstart", only="FedAvg", resume=True)
run({"run": {"trackers": ["tensorboard"]}})
run_all("quickstart", scale="huge")
make_runs({"rounds": 0})
make_runs({"data": [1]})
make_runs({}, changes=["x"])
read_experiment("none")
read_result("none")
read_run("none")
find_runs(["none"])
export_model("none")
load("imagenet")
load("mnist", root="none", fetch=False)
draw_attackers(10, 2, 0)
partitions.dirichlet(y, 5, 3, rng, alpha=-1)
partitions.iid(y, 1000, rng)
partitions.iid(y, 0, rng)
partitions.iid(y, 2.5, rng)
partitions.iid(y, 5, 0)
partitions.iid(y, 5, rng, samples=0)
partitions.iid(None, 5, rng)
partitions.shards(names_of, 5, rng)
partitions.shards(one_hot, 5, rng)
partitions.shards(y, 5, rng, shards_per_client="two")
partitions.dirichlet(y, 5, 2, rng)
partitions.dirichlet(y - 1, 5, 3, rng)
partitions.dirichlet(y + 0.5, 5, 3, rng)
partitions.major_class(y, 5, 0, rng)
partitions.one_label(y, -5, 3, rng)
partitions.one_group("ab", 2, rng)
partitions.natural(5)
partitions.natural(2, y - 1)
matrix_network(None, None)
matrix_network([1, 2], [1, 2])
matrix_network(["a"], [[1]])
matrix_network([1], [[-1]])
matrix_network([1], [[1, 1]], neighbours=5)
matrix_network([1], [[1, 1]], neighbours=["ab", "c"])
matrix_network([1], [[1, 1]], neighbours=[[1], [0.0]])
matrix_network([1], [[1, 1]], neighbours=[[1], [2]])
Trainer(None, population, rule, 0)
Trainer(module, data, rule, 0)
Trainer(module, population, sgd, 0)
Trainer(module, population, rule, -1)
Trainer(module, population, rule, 0, device="gpu")
Trainer(module, population, rule, 0, precision="float64")
partitions.major_class(y, 5, 3, rng, rho_device=2)
Network(np.ones(2), np.ones((3, 2)), np.ones(2), np.ones((2, 2)), ((1,), (0,)))
krum(-1)
krum(1.5)
krum("one")
multi_krum(1, keep=0)
multi_krum(1, keep="all")
trimmed_mean(0.5)
trimmed_mean(float("nan"))
trimmed_mean("some")
norm_clipping(0)
norm_clipping(None)
geometric_median(0)
geometric_median(smoothing=-1)
centred_clipping(-1)
centred_clipping(1, iterations=0)
bulyan(-2)
bulyan(None)
draw_attackers(-0.5, 10, 0)
draw_attackers(2, 10, 0)
draw_attackers(0.5, 0, 0)
draw_attackers(0.5, 10, -1)
draw_attackers("half", 10, 0)
grid_positions(0, 3)
grid_positions(2, -1)
grid_positions(2, 2, side_metres=0)
grid_positions("2", 2)
place_clients(0, 40.0, rng)
place_clients(10, -1, rng)
place_clients(10, 40.0, None)
place_clients(10, float("nan"), rng)
random_waypoint(np.zeros((4, 2)), 40, -1, 5, 1, rng)
random_waypoint(np.zeros((4, 2)), 40, 1, 5, 0, rng)
random_waypoint(np.zeros((4, 3)), 40, 1, 5, 1, rng)
random_waypoint(None, 40, 1, 5, 1, rng)
draw_watts(0, rng)
draw_watts(5, rng, 100, 50)
draw_watts(5, rng, -1, 50)
draw_watts(5, 0)
Radio(bandwidth_hz=0)
Radio(noise_dbm=float("nan"))
Radio(path_loss_exponent="steep")
generator(-1, "x")
generator("a", "x")
generator(0, 5)
generator(1.5, "x")
draw_model(None, data, 0)
draw_model(models.mlp, None, 0)
draw_model(models.mlp, data, -1)
draw_model(nn.Linear(2, 2), data, 0)
draw_model(lambda shape, classes: 5, data, 0)
draw_model("mlp", data, 0)
draw_model(models.cnn, data, 0)
read_model(None)
read_model("module")
load_model(module, {})
load_model(module, {"weight": torch.zeros(2, 2), "bias": torch.zeros(3)})
load_model(module, None)
load_model(None, {})
init(method)
init(method, None)
init(None, read_model(module))
init(method, {})
init(method, read_model(module), read_model(module))
Serial(None)
Serial(module)
Stacked(None)
Stacked(executor, stack_bytes=0)
Cores(None, 2, 100)
Cores(executor.trainer, 0, 100)
Evaluator(None, module)
Evaluator(population, None)
Evaluator(population, module, samples=0)
Evaluator(population, module).score(None)
Evaluator(population, module).score({})
list(train(None, executor, state))
list(train(method, None, state))
list(train(method, executor, None))
heterogeneity(population, clustering, module, None)
heterogeneity(population, None, module, read_model(module))
heterogeneity(None, clustering, module, read_model(module))
heterogeneity(population, Clustering([0, 1], 2), module, read_model(module))
from_pandas(None, target="y")
from_torch([(torch.zeros(2), 0), (torch.zeros(3), 1)])
from_torch([(torch.zeros(2), "a")] * 10)
from_torch([torch.zeros(2)] * 10)
from_torch([(torch.zeros(2), 0)] * 10, inputs="image")
from_torch([(torch.zeros(2), 0)] * 10, test_every=0)
from_torch([(torch.zeros(2), 0)] * 10, classes=0)
find_runs(None)
find_runs("none")
find_runs([5])
rounds_to_target(None)
plot_curves([])
plot_curves(None)
plot_curves([], x="time")
write_report([], "out")
write_report(None, "out")
export_model("none", "pt")
export_model(5)
lose_clients(method.schedule, dropout=1)
lose_clients(method.schedule, dropout=-1)
lose_clients(None, dropout=0.5)
lose_clients(method.schedule, dropout="half")
lose_clients(method.schedule, seed=-1, dropout=0.5)
fedper(population, rule, 2, module, personal_layers=-1)
fedper(population, rule, 2, None)
fedrep(population, rule, 2, module, body_steps=0)
fedbn(population, rule, 2, None)
fedbn(population, rule, 2, nn.Sequential())
fedgroup(population, rule, 2, clusters=0)
fedgroup(population, rule, 2, pretrained=0)
fesem(population, rule, 2, clusters=0)
fesem(population, rule, 2, clusters=1000)
pacfl(population, rule, 2, module, vectors=0)
pacfl(population, rule, 2, module, angle="wide")
pacfl(population, rule, 2, module, linkage="ward")
pacfl(population, rule, 2, None)
fmcl(population, rule, 2, module, encoder=nn.Linear(1, 1))
stocfl(population, rule, 2, module, least_cosine=-2)
stocfl(population, rule, 2, module, penalty=-1)
lcfed(population, rule, 2, module)
cfl(population, rule, 2, eps1=-1)
cfl(population, rule, 2, gamma=2)
hierfavg(population, clustering, network, rule, 3)
hierfavg(population, clustering, network, rule, 5, pattern="decsyn")
bcd(population, rule, 2, gamma=-1)
bcd(population, rule, 2, server_lr=2)
fedavgm(population, rule, 2, momentum=1)
alone(population, rule, 2, fraction=2)
fedadagrad(population, rule, 2, tau=0)
clusterings.random(population, 0, rng)
clusterings.random(population, 2, None)
clusterings.random(None, 2, rng)
clusterings.major_class(population, 2, rng, rho_cluster=2)
clusterings.planted(population, 2)
clusterings.comaw(None)
partitions.some_labels(y, 5, 3, rng, labels_per_client=0)
partitions.some_labels(y, 5, 3, rng, labels_per_client=4)
partitions.quantity(y, 5, rng, sigma=-1)
partitions.labels_and_quantity(y, 5, 3, rng, sigma="wide")
partitions.dirichlet(None, 5, 3, rng)
models.mlp((4,), 0)
models.mlp(4, 3)
models.linear(None, 3)
models.lstm((5,), 3, symbols=0)
models.transformer((5,), 3, width=10, heads=3)
models.resnet((3, 8, 8), 3, blocks=[])
models.alexnet((1, 8, 8), 3)
topologies.grid(0, 3)
topologies.ring(0)
topologies.ring("a")
topologies.complete(-1)
topologies.regular(4, 5, 0)
topologies.erdos_renyi(4, 2.0, 0)
topologies.edges(4, [[0, 9]])
topologies.edges(4, None)
topologies.star(0)
plot.curves(None)
plot.curves([], "loss")
plot.curves(5, ax=5)
plot.curves("runs/none", band="both")
plot.gantt(None, [])
plot.clusters(None, None)
plot.shares(None, None)
save_figure(None, "x.pdf")
save_figure(5, "x.pdf")
Screening(max_update_norm=0)
Screening(max_update_norm=float("nan"))
Screening(usual_norms=True)
Trace(2, [0], [0], [[0, 0]])
Experiment(data=5)
Experiment(model=5)
Experiment(clustering=[0, 1])
Experiment(method=5)
Experiment(nothing=1)
Experiment(rounds=-1)
Experiment(data=data, model=nn.Linear(4, 3))
Experiment(schedule=5)
Experiment(clustering=lambda population, clusters: [0]).clustering
Experiment(clustering=lambda population, clusters: "ab").clustering
Experiment(clustering=lambda: 5).clustering
Experiment(model=lambda: nn.Linear(3, 2)).check()
Experiment(method=lambda population, rule: 5).method
Experiment(data=lambda: 5).clients.dealt
run(data=data, rounds=2, data_clients=3)
run(data=[x, y])
run(rounds=2, out=5)
run(rounds=2, progress="yes", out="tiny", scale=5)
run(rounds="two")
run(rounds=np.array([2, 3]))
run(seed=1.0e300)
run(method="fedavg", fraction=0.5)
run(method={"name": "fedavg", "fraction": None})
run(local={"optimizer": "adamx"})
run(local={"optimizer": torch.optim.LBFGS})
run("quickstart", only="")
run("quickstart", only=5)
run_all("quickstart", only="nothing")
run_all({"runs": [{"label": "a"}, {"label": "a"}]})
make_runs("quickstart")
make_runs({}, scale="big")
make_runs({}, changes=[5])
make_runs({}, changes={"local.lr": 0.1})
read_experiment(5)
read_experiment("")
read_experiment(None)
read_result(5)
read_run(5)
load(5)
load("")
load("digits", root=5)
Settings(method=None)
Settings(name="a/b")
fedat(population, rule, clock, 2, tiers=0)
matrix_network(np.ones(20), np.full((20, 2), np.nan))
matrix_network(np.ones(3), np.ones((3, 2)), neighbours=[[1]])
wireless_network(np.zeros((3, 2)), np.zeros((2, 2)), np.zeros(2), np.ones(3), np.ones(3), -1, None)
wireless_network(np.zeros((3, 2)), np.zeros((2, 2)), np.zeros(2), np.ones(2), np.ones(3), 100, topologies.ring(2))
"""


def lines(text: str) -> list[str]:
    return text.strip().splitlines()


def bundles(text: str) -> list[list[str]]:
    """Return some cases for each test, since a test takes as long to set up as a case."""
    cases = lines(text)
    return [cases[i : i + 25] for i in range(0, len(cases), 25)]


CONTENTS = {"tiny.toml": TINY, "broken.toml": "rounds = ", "list.toml": "rounds = [[1]]", "text.txt": TINY}
CONTENTS["rows.csv"] = "c,x,y\n" + "".join(f"{'ab'[i % 2]},{i}.5,{i % 3}\n" for i in range(60))


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Work in a folder with a few experiment files; see that nothing is written into it."""
    for name, text in CONTENTS.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    assert_nothing_is_written("the last case")


def assert_nothing_is_written(case: str) -> None:
    """See that the working folder has the files that were put there, as they were."""
    assert {path.name: path.read_text() for path in Path().iterdir()} == CONTENTS, case


def test_there_are_a_thousand() -> None:
    cases = [*lines(CHANGES), *lines(COMMANDS), *lines(CALLS)]
    assert len(set(cases)) == len(cases) >= 1000


HARMLESS = {"label", "panel", "description"}  # any text will do


def test_every_setting_is_given_wrongly_once() -> None:
    tried = {change.partition("=")[0] for changes in lines(CHANGES) for change in changes.split()}
    sections = full_model().model_fields.items()
    known = {
        f"{name}.{key}" if isinstance(field.annotation, type) and issubclass(field.annotation, Section) else name
        for name, field in sections
        for key in getattr(field.annotation, "model_fields", [""])
    }
    assert known - tried == HARMLESS


def told(capfd: pytest.CaptureFixture[str], words: list[str]) -> str:
    """Return the sentence of a command that must be refused."""
    code = main(words)
    printed = capfd.readouterr()
    sentences = [line for line in printed.err.splitlines() if line.startswith("error: ")]
    assert code == 2, (words, printed)
    assert printed.out == "", words
    assert len(sentences) == 1, (words, printed.err)
    return sentences[0]


@pytest.mark.parametrize("cases", bundles(CHANGES), ids=lambda cases: cases[0])
def test_settings(capfd: pytest.CaptureFixture[str], cases: list[str]) -> None:
    for changes in cases:
        sentence = told(capfd, ["run", "tiny.toml", *(word for each in changes.split() for word in ("--set", each))])
        assert not RAW.search(sentence), changes
        assert_nothing_is_written(changes)


@pytest.mark.parametrize("commands", bundles(COMMANDS), ids=lambda commands: commands[0])
def test_commands(capfd: pytest.CaptureFixture[str], commands: list[str]) -> None:
    for command in commands:
        sentence = told(capfd, shlex.split(command))
        assert not RAW.search(sentence), command
        assert_nothing_is_written(command)


def change(settings: Any) -> None:
    settings.rounds = 5


@pytest.fixture(scope="module")
def names() -> dict[str, Any]:
    """What the calls are made of."""
    x, y = np.linspace(0, 1, 400, dtype=np.float32).reshape(100, 4), np.arange(100) % 3
    data = atoll.Dataset("own", x, y, x, y, 3)
    population = atoll.make_population(data, np.arange(100).reshape(20, 5))
    own = {name: getattr(atoll, name) for name in atoll.__all__}
    own |= {"x": x, "y": y, "nan": np.where(x > 0.5, np.nan, x), "inf": np.inf, "one_hot": np.eye(3)[y]}
    own |= {"names_of": np.array(["a", "b"] * 50), "tensor": torch.from_numpy(x), "np": np, "nn": nn, "torch": torch}
    own |= {"data": data, "population": population, "clustering": atoll.Clustering(np.arange(20) % 2, 2)}
    own |= {"sgd": atoll.optimizers.sgd, "rule": atoll.LocalRule(atoll.optimizers.sgd, 0.1), "change": change}
    own |= {"clock": atoll.Clock(np.ones(20), np.ones(20)), "rng": np.random.default_rng(0), "own": lambda: data}
    own["module"] = nn.Linear(4, 3)
    own["method"] = atoll.fedavg(population, own["rule"], 2)
    own["executor"] = atoll.Serial(atoll.Trainer(own["module"], population, own["rule"], 0))
    own["state"] = atoll.init(own["method"], atoll.read_model(own["module"]))
    own["network"] = atoll.matrix_network(np.ones(20), np.ones((20, 2)), neighbours=[[1], [0]])
    return own


@pytest.mark.parametrize("calls", bundles(CALLS), ids=lambda calls: calls[0])
def test_calls(names: dict[str, Any], calls: list[str]) -> None:
    for call in calls:
        sentence = refusal(call, names)
        assert not RAW.search(sentence), call
        assert "\n" not in sentence, call
        assert_nothing_is_written(call)


def refusal(call: str, names: dict[str, Any]) -> str:
    """Return the sentence of a call that must be refused."""
    try:
        eval(call, dict(names))
    except AtollError as error:
        return str(error)
    raise AssertionError(f"let pass: {call}")
