"""recsys: Transformer encoders with target attention over purchase histories.

The whole way::

    data = recsys.prepare("purchases.csv", out="data/purchases")
    run = recsys.fit("configs/mine.yaml", data)
    model = recsys.load(run.bundle)
    model.recommend(histories, k=10)
"""
