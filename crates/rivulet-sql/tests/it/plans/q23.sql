SELECT B.auction, B.bidder, P.name, A.id, A.item_name
FROM bid B JOIN person P ON P.id = B.bidder JOIN auction A ON A.seller = B.bidder;
